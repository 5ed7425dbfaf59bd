"""The rollout engine on a sampler that answers from a table: how calls become requests, and answers completions."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import BackendError, RolloutError, UnsupportedSamplingError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local.tiny import build_tokenizer
from rllm_tinker.engine import TinkerEngine
from rllm_tinker.exchange import SampledSequence

STOP = 2


class FakeSampler:
    """Answers every seed with that token, and remembers what it was asked."""

    def __init__(self, answer: Any = None) -> None:
        self.requests: list[list[tuple[tuple[int, ...], int]]] = []
        self._answer = answer

    async def sample(
        self,
        prompts: Sequence[NDArray[np.int32]],
        sampling: SamplingParams,
        stop_ids: Sequence[int],
        seeds: Sequence[int],
    ) -> list[SampledSequence]:
        self.requests.append([(tuple(prompt.tolist()), seed) for prompt, seed in zip(prompts, seeds, strict=True)])
        await asyncio.sleep(0)
        if isinstance(self._answer, Exception):
            raise self._answer
        if self._answer is not None:
            return [self._answer for _ in seeds]
        one = np.array([-0.5], np.float32)
        return [SampledSequence(tokens=np.array([seed], np.int32), logprobs=one) for seed in seeds]


def _engine(
    sampler: Any, prompts_per_request: int = 128, max_context: int = 16, versions_served: int = 1
) -> TinkerEngine:
    engine = TinkerEngine(
        TemplateRenderer(build_tokenizer(), {STOP}),
        max_context=max_context,
        prompts_per_request=prompts_per_request,
        versions_served=versions_served,
    )
    engine.sync_weights(sampler, 3)
    return engine


def _all(engine: TinkerEngine, calls: Sequence[tuple[list[int], int]], max_tokens: int = 4) -> list[Completion]:
    async def ask() -> list[Completion]:
        params = [SamplingParams(max_tokens=max_tokens, seed=seed) for _, seed in calls]
        asked = [engine.generate(prompt, one, session="s") for (prompt, _), one in zip(calls, params, strict=True)]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            await engine.close()

    return asyncio.run(ask())


def test_simultaneous_calls_share_a_request_with_separate_samples() -> None:
    sampler = FakeSampler()
    found = _all(_engine(sampler), [([7], 11), ([8], 12), ([7], 13)])
    assert [completion.token_ids.tolist() for completion in found] == [[11], [12], [13]]
    assert sampler.requests == [[((7,), 11), ((8,), 12), ((7,), 13)]]


@pytest.mark.parametrize(("most", "sizes"), [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1])])
def test_requests_respect_the_service_maximum_of_prompts(most: int, sizes: list[int]) -> None:
    sampler = FakeSampler()
    _all(_engine(sampler, prompts_per_request=most), [([7], seed) for seed in range(5)])
    assert [len(request) for request in sampler.requests] == sizes


def test_completion_has_finish_reason_and_weight_version() -> None:
    stopped, cut_off = _all(_engine(FakeSampler()), [([7], STOP), ([7], 9)])
    assert (stopped.finish_reason, cut_off.finish_reason) == ("stop", "length")
    assert stopped.weight_version == 3


def test_failed_request_fails_only_its_own_calls() -> None:
    engine = _engine(FakeSampler(BackendError("made-up", "gone")))
    with pytest.raises(BackendError, match="gone"):
        _all(engine, [([7], 1), ([7], 2)])
    engine.sync_weights(FakeSampler(), 4)  # type: ignore[arg-type]
    assert _all(engine, [([7], 1)])[0].token_ids.tolist() == [1]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "value"),
    [
        ([7], 0, "bad-sampling-parameter", "max_tokens"),
        ([], 4, "empty-prompt", "prompt"),
        ([7] * 16, 4, "prompt-too-long", 16),
    ],
)
def test_what_cannot_be_sampled_is_refused(prompt: list[int], max_tokens: int, code: str, value: object) -> None:
    with expect_error(RolloutError, code, value):
        _all(_engine(FakeSampler()), [(prompt, 1)], max_tokens)


@pytest.mark.parametrize("logprobs", [[], [float("nan")]])
def test_samples_without_finite_log_probs_are_rejected(logprobs: list[float]) -> None:
    answer = SampledSequence(tokens=np.array([5], np.int32), logprobs=np.array(logprobs, np.float32))
    with pytest.raises(BackendError, match="1 tokens with"):
        _all(_engine(FakeSampler(answer)), [([7], 1)])


def test_request_is_cancelled_after_all_its_callers_left() -> None:
    cancelled = asyncio.Event()

    class Slow:
        async def sample(self, *_: Any) -> list[SampledSequence]:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return []

    async def give_up() -> None:
        engine = _engine(Slow())
        calls = [
            asyncio.create_task(engine.generate([7], SamplingParams(max_tokens=4, seed=seed), session="s"))
            for seed in range(2)
        ]
        await asyncio.sleep(0.05)
        for call in calls:
            call.cancel()
        await asyncio.wait_for(cancelled.wait(), 60)

    asyncio.run(give_up())


class VersionedSampler(FakeSampler):
    """A sampler that answers with its version number once the test permits it. Other versions can be synced first."""

    def __init__(self, version: int, may_answer: asyncio.Event) -> None:
        super().__init__(SampledSequence(tokens=np.array([version], np.int32), logprobs=np.array([-0.5], np.float32)))
        self._may_answer = may_answer

    async def sample(self, *arguments: Any) -> list[SampledSequence]:
        await self._may_answer.wait()
        return await super().sample(*arguments)


def test_a_call_uses_one_version_during_weight_syncs() -> None:
    async def scenario() -> tuple[list[Completion], list[Completion]]:
        may_answer = asyncio.Event()
        engine = _engine(VersionedSampler(3, may_answer), versions_served=2)
        engine.sync_weights(VersionedSampler(4, may_answer), 4)  # type: ignore[arg-type]

        def call(version: int | None) -> asyncio.Task[Completion]:
            sampling = SamplingParams(max_tokens=4, weight_version=version)
            return asyncio.create_task(engine.generate([7], sampling, session="s"))

        before = [call(3), call(4), call(None)]
        await asyncio.sleep(0)
        engine.sync_weights(VersionedSampler(5, may_answer), 5)  # type: ignore[arg-type]
        after = [call(4), call(5), call(None)]
        may_answer.set()
        return await asyncio.gather(*before), await asyncio.gather(*after)

    for completions, expected in zip(asyncio.run(scenario()), ([3, 4, 4], [4, 5, 5]), strict=True):
        assert [completion.weight_version for completion in completions] == expected
        assert [completion.token_ids.tolist() for completion in completions] == [[version] for version in expected]
        assert all(completion.version_spans == () for completion in completions)


def test_version_no_longer_served_is_rejected() -> None:
    engine = _engine(FakeSampler(), versions_served=2)
    for version in (4, 5):
        engine.sync_weights(FakeSampler(), version)  # type: ignore[arg-type]
    with expect_error(RolloutError, "weights-gone", "version 3", "4, 5"):
        asyncio.run(engine.generate([7], SamplingParams(max_tokens=2, weight_version=3), session="s"))


def test_sampler_no_longer_served_is_released() -> None:
    first = FakeSampler()
    engine, kept = _engine(first, versions_served=2), weakref.ref(first)
    del first
    for version in (4, 5):
        assert kept() is not None
        engine.sync_weights(FakeSampler(), version)  # type: ignore[arg-type]
    assert kept() is None


def test_schema_is_refused_as_unsupported() -> None:
    engine = _engine(FakeSampler())
    with pytest.raises(UnsupportedSamplingError, match="JSON schema"):
        asyncio.run(engine.generate([7], SamplingParams(max_tokens=4, json_schema="{}"), session="s"))
