"""What vLLM samples is what the trainer's model would have sampled, before and after its weights change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_local.engine import LocalEngine
from rllm_local.model import LoadedModel
from rllm_local.samplers import HostedSampler
from rllm_local.settings import LocalConfig
from rllm_vllm.engine import VllmEngine

PROMPT = [5, 6, 7, 8, 9]
CLOSE = 1e-3
Plain = Callable[..., np.ndarray]


def _assert_agrees(completion: Completion, temperature: float, plain_logprobs: Plain, prompt: list[int]) -> None:
    expected = plain_logprobs(prompt, completion.token_ids.tolist(), temperature)
    np.testing.assert_allclose(completion.logprobs, expected, atol=CLOSE, rtol=0)


def _response(
    runner: asyncio.Runner, engine: VllmEngine | LocalEngine, prompt: list[int] | None = None, **sampling: Any
) -> Completion:
    params = SamplingParams(**({"max_tokens": 24, "seed": 2**62 + 5} | sampling))
    return runner.run(engine.generate(prompt or PROMPT, params, session="a"))


@pytest.fixture(params=[0, 1], ids=["first-weights", "changed-weights"])
def version(
    request: pytest.FixtureRequest, runner: asyncio.Runner, hosting: HostedSampler, loaded_model: LoadedModel
) -> int:
    """Weights as vLLM was first given them, then others that were put in their place while it was running."""
    if request.param:
        with torch.no_grad():
            for parameter in loaded_model.model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    runner.run(hosting.sync_weights(request.param))
    number: int = request.param
    return number


def test_responses_agree_with_the_trained_model(
    version: int, runner: asyncio.Runner, vllm: VllmEngine, own_engine: LocalEngine, plain_logprobs: Plain
) -> None:
    greedy, own = _response(runner, vllm, temperature=0.0), _response(runner, own_engine, temperature=0.0)
    assert greedy.token_ids.tolist() == own.token_ids.tolist()
    assert greedy.finish_reason == own.finish_reason
    assert greedy.weight_version == version
    np.testing.assert_allclose(greedy.logprobs, own.logprobs, atol=CLOSE, rtol=0)
    for sampling in (
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.0, "top_k": 5},
        {"temperature": 0.8, "top_p": 0.5},
        {"temperature": 0.7, "top_k": 4, "top_p": 0.8},
    ):
        sampled = _response(runner, vllm, **sampling)
        _assert_agrees(sampled, sampling["temperature"], plain_logprobs, PROMPT)


def test_conversations_of_several_turns_run_at_once(
    runner: asyncio.Runner, vllm: VllmEngine, plain_logprobs: Plain
) -> None:
    async def converse(index: int) -> list[tuple[list[int], Completion]]:
        tokens, turns = [5 + index, 6, 7], []
        for turn in range(3):
            params = SamplingParams(max_tokens=8, seed=100 * index + turn)
            completion = await vllm.generate(tokens, params, session=str(index))
            turns.append((tokens, completion))
            tokens = [*tokens, *completion.token_ids.tolist(), 9, 10]
        await vllm.end_session(str(index))
        return turns

    async def all_of_them() -> list[list[tuple[list[int], Completion]]]:
        return await asyncio.gather(*(converse(index) for index in range(12)))

    for prompt, completion in (turn for turns in runner.run(all_of_them()) for turn in turns):
        _assert_agrees(completion, 1.0, plain_logprobs, prompt)


def test_response_across_weight_change_has_version_spans(
    runner: asyncio.Runner, hosting: HostedSampler, vllm: VllmEngine, loaded_model: LoadedModel, plain_logprobs: Plain
) -> None:
    async def change_after(seconds: float, version: int) -> list[Completion]:
        await hosting.sync_weights(version)
        calls = [
            asyncio.create_task(
                vllm.generate(PROMPT, SamplingParams(max_tokens=240, seed=seed), session=f"{version}-{seed}")
            )
            for seed in range(24)
        ]
        await asyncio.sleep(seconds)
        with torch.no_grad():
            for parameter in loaded_model.model.parameters():
                parameter.mul_(0.97)
        await hosting.sync_weights(version + 1)
        return await asyncio.gather(*calls)

    # How long a response takes is the machine's: the change comes later and later until it falls into some.
    for number in range(12):
        version = 10 + 2 * number
        completions = runner.run(change_after(0.02 * 2**number, version))
        changed = [completion for completion in completions if completion.version_spans[1:]]
        if changed:
            break
    assert changed
    for completion in changed:
        (older, before), (newer, after) = completion.version_spans
        assert (older, newer, completion.weight_version) == (version, version + 1, version)
        expected = plain_logprobs(PROMPT, completion.token_ids.tolist(), 1.0)
        np.testing.assert_allclose(completion.logprobs[-after:], expected[-after:], atol=CLOSE, rtol=0)
        assert np.abs(completion.logprobs[:before] - expected[:before]).max() > CLOSE


def test_prompts_of_several_passes_have_own_seeds(
    make_hosting: Callable[..., HostedSampler], renderer: Renderer, settings: LocalConfig, plain_logprobs: Plain
) -> None:
    """On a CPU a prompt that was split over passes ended the engine."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(4, 40, 200).tolist() for _ in range(12)]

    async def together_and_separate() -> tuple[list[Completion], list[Completion]]:
        hosting = make_hosting(engine_args={"max_num_batched_tokens": 300})

        def response(seed: int) -> Awaitable[Completion]:
            params = SamplingParams(max_tokens=6, seed=seed)
            return hosting.engine.generate(prompts[seed], params, session=str(seed))

        try:
            await hosting.start(renderer, 256, settings)
            together = await asyncio.gather(*map(response, range(12)))
            return together, [await response(seed) for seed in range(12)]
        finally:
            await hosting.close()

    together, separate = asyncio.run(together_and_separate())
    assert [each.token_ids.tolist() for each in together] == [each.token_ids.tolist() for each in separate]
    for prompt, completion in zip(prompts, together, strict=True):
        _assert_agrees(completion, 1.0, plain_logprobs, prompt)
