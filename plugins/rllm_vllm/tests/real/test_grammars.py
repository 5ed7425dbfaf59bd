"""Responses of vLLM that must match a JSON schema, by the grammars of the backend `local`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from byte_tokenizer import THINK, byte_tokenizer
from heads_of_32 import save_model

from rllm_backend_kit.grammars import Grammars
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import UnsupportedSamplingError
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local.engine import LocalEngine
from rllm_local.model import load_model
from rllm_local.samplers import HostedSampler
from rllm_local.settings import LocalConfig, ModelSection
from rllm_vllm.options import VllmOptions

PROMPT = [10, 20, 30]
SCHEMA: Any = {"enum": ["left", "right"]}
CLOSE = 1e-3
Sample = Callable[..., list[Completion]]


@pytest.fixture(scope="module")
def engines(
    tmp_path_factory: pytest.TempPathFactory,
    executor: ThreadPoolExecutor,
    runner: asyncio.Runner,
    settings: LocalConfig,
) -> Iterator[tuple[Any, LocalEngine]]:
    """vLLM and the backend's own engine on one model of bytes."""
    directory: Path = tmp_path_factory.mktemp("bytes32")
    save_model(directory, byte_tokenizer())
    loaded = load_model(ModelSection(name=str(directory), device="cpu"), 0)
    renderer = TemplateRenderer(loaded.tokenizer, loaded.stop_ids)
    size = loaded.model.get_output_embeddings().weight.shape[0]
    own = LocalEngine(
        loaded.model,
        renderer,
        executor,
        max_context=256,
        max_concurrency=8,
        kv_cache_bytes=1 << 26,
        grammars=Grammars(loaded.tokenizer, size, renderer),
    )
    chosen = PluginChoice(registered=Registry.load().get("engine", "vllm"), params=VllmOptions())
    hosting = HostedSampler(chosen, loaded, asyncio.to_thread)
    try:
        runner.run(hosting.start(renderer, 256, settings))
        yield hosting.engine, own
    finally:
        runner.run(hosting.close())


def sample(runner: asyncio.Runner, engine: Any, *requests: dict[str, Any], prompt: Any = PROMPT) -> list[Completion]:
    async def generate_all() -> list[Completion]:
        asked = [SamplingParams(**{"max_tokens": 100, "seed": 3, **each}) for each in requests]
        return await asyncio.gather(*(engine.generate(prompt, each, session=str(at)) for at, each in enumerate(asked)))

    return runner.run(generate_all())


def parse_json(engine: Any, completion: Completion) -> Any:
    assert completion.finish_reason == "stop"
    return json.loads(engine.renderer.parse(PROMPT, completion.token_ids).content)


def test_greedy_constrained_responses_equal_those_of_local(
    engines: tuple[Any, LocalEngine], runner: asyncio.Runner
) -> None:
    request = {"json_schema": json.dumps(SCHEMA), "temperature": 0.0}
    [one], [two] = (sample(runner, engine, request) for engine in engines)

    assert one.token_ids.tolist() == two.token_ids.tolist()
    np.testing.assert_allclose(one.logprobs, two.logprobs, atol=CLOSE, rtol=0)


def test_constrained_logprobs_are_those_before_the_mask(
    engines: tuple[Any, LocalEngine], runner: asyncio.Runner
) -> None:
    vllm, own = engines
    requests = [
        {"json_schema": json.dumps(SCHEMA), "temperature": temperature, "seed": seed, **cut}
        for seed, (temperature, cut) in enumerate(
            4 * [(1.0, {}), (0.7, {}), (0.7, {"top_p": 0.9}), (1.3, {"top_k": 50})]
        )
    ]
    completions = sample(runner, vllm, *requests)

    # A response may think first, and this model may then think until its tokens are used up.
    direct = [completion for completion in completions if completion.token_ids[0] != THINK[0]]
    assert len(direct) > 1
    assert all(parse_json(vllm, completion) in SCHEMA["enum"] for completion in direct)
    for request, completion in zip(requests, completions, strict=True):
        ids = torch.tensor([[*PROMPT, *completion.token_ids.tolist()]])
        with torch.no_grad():
            logits = own._model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
        logprobs = torch.log_softmax(logits / request["temperature"], -1)
        expected = logprobs.gather(1, ids[0, len(PROMPT) :, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=CLOSE, rtol=0)
    assert all((completion.logprobs < -1).any() for completion in direct)  # the free model would not have written this


def test_constrained_response_does_not_change_unconstrained_one(
    engines: tuple[Any, LocalEngine], runner: asyncio.Runner
) -> None:
    free: dict[str, Any] = {"max_tokens": 20, "seed": 5, "top_k": 9}
    [separate] = sample(runner, engines[0], free)
    together, _ = sample(runner, engines[0], free, {"json_schema": json.dumps(SCHEMA)})

    assert separate.token_ids.tolist() == together.token_ids.tolist()
    np.testing.assert_allclose(separate.logprobs, together.logprobs, atol=CLOSE, rtol=0)


def test_open_reasoning_is_unconstrained_until_it_closes(
    engines: tuple[Any, LocalEngine], runner: asyncio.Runner
) -> None:
    request = {"json_schema": json.dumps(SCHEMA), "temperature": 0.0, "max_tokens": 60}
    [one], [two] = (sample(runner, engine, request, prompt=[*PROMPT, THINK[0]]) for engine in engines)

    assert one.token_ids.tolist() == two.token_ids.tolist()


def test_schema_that_cannot_be_used_is_refused(engines: tuple[Any, LocalEngine], runner: asyncio.Runner) -> None:
    with pytest.raises(UnsupportedSamplingError, match="Unimplemented keys"):
        sample(runner, engines[0], {"json_schema": '{"not": {"type": "string"}}'})
