"""Sampling while weights are updated: which version samples which token, and that it says so."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from local_backend import Scenario, run_scenario
from local_models import make_plan, random_batch

from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import RolloutError
from rllm_core.schema.run_config import RunConfig
from rllm_local import tiny
from rllm_local.backend import LocalBackend
from rllm_local.settings import LocalConfig
from rllm_local.weights import copy_model, copy_weights, trained_weights

MODELS: list[dict[str, Any]] = [{}, {"dtype": "bfloat16"}, {"lora_rank": 4}]
NAMES = ["float32", "bfloat16", "lora"]
PROMPT = list(range(6, 26))


def _run(scenario: Scenario, model: dict[str, Any], versions_served: int = 1) -> Any:
    context = RunContext(
        config=RunConfig(),
        backend_config=LocalConfig(training={"learning_rate": 1e-2}, model=model),  # type: ignore[arg-type]
        seed=0,
        total_steps=10,
        versions_served=versions_served,
    )
    return run_scenario(context, scenario)


def _weights(backend: LocalBackend) -> Any:
    return copy.deepcopy(backend._require_started()[0].trainer.masters.model.state_dict())


def _logprobs(backend: LocalBackend, weights: Any, ids: list[int]) -> torch.Tensor:
    """(n_token - 1,) log-probs of all tokens but the first, under some weights."""
    model = backend._require_started()[0].trainer.masters.model
    now = _weights(backend)
    model.load_state_dict(weights)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    model.load_state_dict(now)
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("model", MODELS[1:], ids=NAMES[1:])
def test_tokens_match_their_recorded_version_across_updates(model: dict[str, Any]) -> None:
    """No pass runs between the end of an update and its publication, whose tokens would say the old version."""

    async def scenario(backend: LocalBackend, engine: Any) -> list[Completion]:
        weights = [_weights(backend)]
        batch = random_batch([(9, 6), (8, 7)], vocabulary=20)
        sampling = SamplingParams(max_tokens=60, seed=3)
        calls = [
            asyncio.create_task(engine.generate(PROMPT[index:], replace(sampling, seed=index), session=f"s{index}"))
            for index in range(3)
        ]
        for step in range(3):
            while engine.sampled < 10 * (step + 1):
                await asyncio.sleep(0)
            await backend.update(batch, make_plan(global_step=step))
            for _ in range(20):
                await asyncio.sleep(0)  # whatever could run before the publication has
            weights.append(_weights(backend))
            await backend.sync_weights(step + 1)
        completions: list[Completion] = await asyncio.gather(*calls)
        for index, completion in enumerate(completions):
            prompt = PROMPT[index:]
            ids = [*prompt, *completion.token_ids.tolist()]
            ends = [0, *accumulate(span.tokens for span in completion.version_spans)]
            for span, (start, end) in zip(completion.version_spans, pairwise(ends), strict=True):
                expected = _logprobs(backend, weights[span.version], ids)[len(prompt) - 1 :][start:end]
                tolerance = 1e-4 if "dtype" not in model else 0.1
                np.testing.assert_allclose(completion.logprobs[start:end], expected.numpy(), atol=tolerance, rtol=0)
        return completions

    async def counting(backend: LocalBackend, engine: Any) -> list[Completion]:
        engine.sampled = 0
        take = engine._take

        def count_calls(*arguments: Any) -> None:
            engine.sampled += 1
            take(*arguments)

        engine._take = count_calls
        return await scenario(backend, engine)  # type: ignore[no-any-return]

    for completion in _run(counting, model):
        assert [span.version for span in completion.version_spans] == [0, 1, 2, 3]
        assert completion.weight_version == 0


@pytest.mark.parametrize("model", MODELS[2:], ids=NAMES[2:])
@pytest.mark.long
def test_each_served_version_samples_equal_tokens(model: dict[str, Any]) -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> None:
        batch = random_batch([(9, 6), (8, 7)], vocabulary=20)
        latest: dict[int, list[int]] = {}

        async def sample(version: int | None) -> Completion:
            sampling = SamplingParams(max_tokens=30, seed=5, weight_version=version)
            done: Completion = await engine.generate(PROMPT, sampling, session=f"{version}")
            await engine.end_session(f"{version}")
            return done

        for step in range(5):
            completion = await sample(None)
            assert completion.weight_version == step
            latest[step] = completion.token_ids.tolist()
            for version in range(max(0, step - 2), step + 1):
                fixed = await sample(version)
                assert (fixed.weight_version, fixed.version_spans) == (version, ())
                assert fixed.token_ids.tolist() == latest[version]
            await backend.update(batch, make_plan(global_step=step))
            assert (await sample(None)).token_ids.tolist() == latest[step]
            await backend.sync_weights(step + 1)
        assert len({tuple(tokens) for tokens in latest.values()}) == 5

    _run(scenario, model, versions_served=3)


def test_request_for_a_dropped_version_is_rejected() -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> None:
        for version in range(1, 4):
            await backend.sync_weights(version)
        with pytest.raises(RolloutError, match=r"(?s)version 1 .*: 2, 3"):
            await engine.generate(PROMPT, SamplingParams(max_tokens=2, weight_version=1), session="s")

    _run(scenario, {}, versions_served=2)


def test_a_copy_shares_what_is_not_trained() -> None:
    model = tiny.build_model(70, 0)
    first, *others = model.parameters()
    for parameter in others:
        parameter.requires_grad_(False)
    trained = trained_weights(model)
    made = copy_model(model, trained)
    own = list(made.parameters())
    assert own[0].data_ptr() != first.data_ptr()
    assert [a.data_ptr() for a in own[1:]] == [b.data_ptr() for b in others]
    assert not any(parameter.requires_grad for parameter in own)
    with torch.no_grad():
        first.add_(1.0)
    assert not torch.equal(own[0], first)
    copy_weights(trained, dict(made.named_parameters()))
    assert torch.equal(own[0], first)


def test_a_response_keeps_its_version_during_syncs() -> None:
    async def scenario(backend: LocalBackend, engine: Any) -> Completion:
        sampling = SamplingParams(max_tokens=60, seed=3, weight_version=0)
        call = asyncio.create_task(engine.generate(PROMPT, sampling, session="s"))
        for version in (1, 2):
            for _ in range(5):
                await asyncio.sleep(0)
            await backend.sync_weights(version)
        done: Completion = await call
        return done

    done = _run(scenario, {}, versions_served=3)
    assert (done.weight_version, done.version_spans, len(done.token_ids)) == (0, (), 60)
