"""The engine against a plain forward pass without a cache and against Hugging Face's `generate`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from expecting import check_error, expect_error
from local_models import assert_as_without_cache

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.errors import RolloutError
from rllm_local import engine as engine_module
from rllm_local.engine import LocalEngine
from rllm_local.exact_attention import BLOCK
from rllm_local.forward import Row, buckets

from .conftest import Passes

MODELS = ["model", "grouped_model", "qwen_model"]
Check = Callable[[Any, list[int], SamplingParams, Completion], None]


def _params(max_tokens: int, **changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **changes)


def _ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((seed, length)).integers(6, 70, length).tolist()


def _gather(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async def gather_all() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*calls), 100)

    return asyncio.run(gather_all())


def _generate(engine: LocalEngine, prompt: list[int], params: SamplingParams, session: str = "single") -> Completion:
    return _gather(engine.generate(prompt, params, session=session))[0]


@pytest.mark.parametrize("name", MODELS)
def test_ragged_requests_at_once_equal_plain_forward_passes(
    name: str, request: pytest.FixtureRequest, make_engine: Callable[..., LocalEngine]
) -> None:
    model = request.getfixturevalue(name)
    generator = np.random.default_rng(7)
    prompts = [_ids(int(length), seed) for seed, length in enumerate([1, 200, *generator.integers(1, 201, 22)])]
    params = [
        _params(
            int(count),
            seed=seed,
            temperature=[1.0, 0.0, 0.5, 1.7][seed % 4],
            top_k=[-1, 4][seed % 2],
            top_p=[1.0, 0.8, 0.3][seed % 3],
        )
        for seed, count in enumerate([60, 1, *generator.integers(1, 61, 22)])
    ]
    engine = make_engine(model)
    calls = [engine.generate(prompts[index], params[index], session=f"s{index}") for index in range(24)]
    for prompt, sampling, completion in zip(prompts, params, _gather(*calls), strict=True):
        assert len(completion.token_ids) == sampling.max_tokens
        assert completion.finish_reason == "length"
        assert_as_without_cache(model, prompt, sampling, completion)


def test_extending_turn_computes_only_its_new_tokens(
    make_engine: Callable[..., LocalEngine], passes: Any, model: Any
) -> None:
    engine = make_engine()
    history = _ids(50)
    for turn in range(5):
        params = _params(9, seed=turn)
        before = passes.tokens
        completion = _generate(engine, history, params, "game")
        assert_as_without_cache(model, history, params, completion)
        # The last sampled token of the turn before was never put through the model.
        assert passes.tokens - before == (50 if turn == 0 else 1 + 4) + 8
        history = [*history, *completion.token_ids.tolist(), *_ids(4, turn)]


def test_rewritten_history_is_computed_from_its_first_difference(
    make_engine: Callable[..., LocalEngine], passes: Any, model: Any
) -> None:
    engine = make_engine()
    history = _ids(60)
    _generate(engine, history, _params(10), "agent")
    for marker, (shared, length) in enumerate([(40, 70), (40, 45), (0, 30), (12, 13)]):
        rewritten = [*history[:shared], marker, *_ids(length - shared - 1, 9)]
        before, params = passes.tokens, _params(3, seed=2)
        completion = _generate(engine, rewritten, params, "agent")
        assert passes.tokens - before == length - shared + 2
        assert_as_without_cache(model, rewritten, params, completion)
        history = rewritten


def test_an_ended_sessions_cache_can_be_reused(make_engine: Callable[..., LocalEngine], passes: Any) -> None:
    engine = make_engine(max_concurrency=1)

    async def scenario() -> None:
        await engine.generate(_ids(50), _params(1), session="a")
        await engine.end_session("a")
        await engine.end_session("never seen")
        await engine.generate(_ids(50), _params(1), session="b")
        await engine.end_session("b")
        await engine.generate(_ids(50, 1), _params(1), session="c")

    asyncio.run(scenario())
    assert passes.rows == [[50], [1], [50]]


def test_requests_of_one_session_run_one_by_one(
    make_engine: Callable[..., LocalEngine], passes: Any, model: Any
) -> None:
    engine = make_engine()
    same = [(_ids(20 + index, index), _params(10, seed=index)) for index in range(4)]
    other = (_ids(15), _params(10, seed=9))
    calls = [engine.generate(*call, session="one") for call in same]
    finished: list[str] = []

    async def note_pass(name: str, call: Coroutine[Any, Any, Completion]) -> Completion:
        completion = await call
        finished.append(name)
        return completion

    answers = _gather(
        *(note_pass(f"one {index}", call) for index, call in enumerate(calls)),
        note_pass("other", engine.generate(*other, session="other")),
    )
    for (prompt, params), completion in zip([*same, other], answers, strict=True):
        assert_as_without_cache(model, prompt, params, completion)
    assert finished.index("other") <= 1
    assert [name for name in finished if name != "other"] == [f"one {index}" for index in range(4)]
    assert max(len(rows) for rows in passes.rows) <= 2


def test_conversations_above_the_concurrency_wait(
    make_engine: Callable[..., LocalEngine], passes: Any, model: Any
) -> None:
    engine = make_engine(max_concurrency=5)

    async def conversation(index: int) -> list[tuple[list[int], SamplingParams, Completion]]:
        history, turns = _ids(6 + index, index), []
        for turn in range(3):
            params = _params(3 + index % 4, seed=10 * index + turn)
            completion = await engine.generate(history, params, session=f"{index}")
            turns.append((history, params, completion))
            history = [*history, *completion.token_ids.tolist(), *_ids(3, turn)]
        return turns

    for turns in _gather(*(conversation(index) for index in range(12))):
        for turn in turns:
            assert_as_without_cache(model, *turn)
    assert max(len(rows) for rows in passes.rows) <= 5


@pytest.mark.long
@pytest.mark.parametrize("cache_tokens", [1, 400])
def test_growth_beyond_cache_budget_preempts_without_changing_tokens(
    make_engine: Callable[..., LocalEngine], passes: Any, model: Any, cache_tokens: int
) -> None:
    """A budget of 400 tokens is 8 pages, as many as the longest conversation and a copy need."""
    engine = make_engine(max_context=400, cache_tokens=cache_tokens, max_concurrency=16)
    prompts = [_ids(20 + 12 * index, index) for index in range(8)]
    params = [_params(10 + 15 * index, seed=index) for index in range(8)]
    calls = [engine.generate(prompts[i], params[i], session=f"{i}") for i in range(8)]
    for prompt, sampling, completion in zip(prompts, params, _gather(*calls), strict=True):
        assert len(completion.token_ids) == sampling.max_tokens
        assert_as_without_cache(model, prompt, sampling, completion)
    # The pages of preempted requests were evicted, so their tokens were computed again.
    assert passes.tokens > sum(len(p) + s.max_tokens - 1 for p, s in zip(prompts, params, strict=True))
    used = [len(rows) for rows in passes.rows]
    assert used[0] > used[-1]


def test_a_response_ends_where_the_context_is_full(make_engine: Callable[..., LocalEngine], model: Any) -> None:
    for length in (1, 63, 64, 98, 99):
        params = _params(1000, seed=length)
        completion = _generate(make_engine(max_context=100), _ids(length), params)
        assert len(completion.token_ids) == 100 - length
        assert completion.finish_reason == "length"
        assert_as_without_cache(model, _ids(length), params, completion)


def test_a_response_ends_with_the_first_stop_token(make_engine: Callable[..., LocalEngine]) -> None:
    prompt, params = _ids(11), _params(40, seed=2)
    free = _generate(make_engine(), prompt, params).token_ids.tolist()
    stops = {free[9], free[25]}
    first = min(free.index(stop) for stop in stops)
    completion = _generate(make_engine(stop_ids=stops), prompt, params)
    assert completion.token_ids.tolist() == free[: first + 1]
    assert completion.finish_reason == "stop"
    last = _generate(make_engine(stop_ids=stops), prompt, replace(params, max_tokens=first + 1))
    assert last.finish_reason == "stop"
    cut = _generate(make_engine(stop_ids=stops), prompt, replace(params, max_tokens=max(first, 1)))
    assert cut.finish_reason == ("length" if first else "stop")


def test_request_can_have_its_own_stop_rule(make_engine: Callable[..., LocalEngine]) -> None:
    prompt, params = _ids(11), _params(40, seed=2)
    free = _generate(make_engine(), prompt, params).token_ids.tolist()
    engine, asked = make_engine(stop_ids=free), []

    def stops(sampled: np.ndarray) -> bool:
        asked.append(sampled.tolist())
        return len(sampled) == 7

    own, renderers = _gather(
        engine.generate(prompt, params, session="own", stops=stops), engine.generate(prompt, params, session="renderer")
    )
    assert own.token_ids.tolist() == free[:7]
    assert own.finish_reason == "stop"
    assert asked == [free[:count] for count in range(1, 8)]
    assert renderers.token_ids.tolist() == free[:1]


def test_forward_error_fails_all_requests_and_engine_recovers(
    make_engine: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    engine = make_engine(max_concurrency=4)
    _generate(engine, _ids(12), _params(5), "0")
    real, calls = engine_module.sample_next, []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("no room for 3 GiB")
        return real(*arguments)

    monkeypatch.setattr(engine_module, "sample_next", failing)

    async def all_fail() -> list[Any]:
        waiting = [engine.generate(_ids(12, i), _params(20, seed=i), session=f"{i}") for i in range(9)]
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 100)

    answers = asyncio.run(all_fail())
    assert len(answers) == 9
    for answer in answers:
        assert isinstance(answer, RolloutError)
        check_error(answer, "worker-failed", "engine", "MemoryError: no room for 3 GiB")
        assert isinstance(answer.__cause__, MemoryError)
    # The same sessions, so that anything left of the failed requests would be met.
    params = [_params(20, seed=i) for i in range(9)]
    calls_again = [engine.generate(_ids(12, i), params[i], session=f"{i}") for i in range(9)]
    for index, completion in enumerate(_gather(*calls_again)):
        assert_as_without_cache(model, _ids(12, index), params[index], completion)


def test_engine_serves_several_event_loops_in_sequence(make_engine: Callable[..., LocalEngine], model: Any) -> None:
    engine = make_engine(max_concurrency=2)

    async def abandon() -> None:
        answers = [
            asyncio.create_task(engine.generate(_ids(length), _params(count), session=f"{index}"))
            for index, (length, count) in enumerate([(30, 1), (200, 300), (30, 300), (30, 300)])
        ]
        # The first is answered by the first part of a pass whose second part the end of the loop interrupts.
        await answers[0]

    asyncio.run(abandon())
    params = _params(10, seed=6)
    for session in ("0", "new"):
        assert_as_without_cache(model, _ids(17), params, _generate(engine, _ids(17), params, session))


def test_cache_grows_only_to_the_needed_pages(make_engine: Callable[..., LocalEngine]) -> None:
    """Each prompt needs its own pages, the cache grows by half, and pages of old prompts are evicted at the limit."""
    engine = make_engine(max_context=500, cache_tokens=20 * BLOCK)
    sizes = []
    for length in (10, 64, 65, 200, 400, 450):
        _generate(engine, _ids(length), _params(1), session=str(length))
        sizes.append(engine._cache.pages - 1)
    assert sizes == [1, 3, 6, 11, 19, 20]


def test_rows_are_split_by_length_to_bound_padding() -> None:
    generator = np.random.default_rng(0)
    rows = [
        Row(pages=[1], cached=0, fresh=np.zeros(int(length), np.int32), sampling=_params(1), position=0)
        for length in generator.integers(1, 3000, 200)
    ]
    parts = buckets(rows, 4096)
    assert sorted(index for part in parts for index in part) == list(range(200))
    for part in parts:
        lengths = [len(rows[index].fresh) for index in part]
        assert max(lengths) <= max(8, 2 * min(lengths))
        assert len(part) == 1 or len(part) * max(lengths) <= 4096


@pytest.mark.parametrize(
    ("prompt", "count", "code", "value"),
    [
        ([], 1, "empty-prompt", "prompt"),
        ([7, -1], 1, "unknown-token", -1),
        ([7, 2_000_000_000], 1, "unknown-token", 2_000_000_000),
        ([7], 0, "bad-sampling-parameter", "max_tokens is 0"),
    ],
)
def test_impossible_request_fails_only_itself(
    make_engine: Callable[..., LocalEngine], prompt: list[int], count: int, code: str, value: Any
) -> None:
    with expect_error(RolloutError, code, value):
        _generate(make_engine(), prompt, _params(count))


@pytest.mark.parametrize("cause", [FloatingPointError, ZeroDivisionError])
def test_only_the_failing_request_fails(
    make_engine: Callable[..., LocalEngine], monkeypatch: pytest.MonkeyPatch, cause: type[Exception]
) -> None:
    """The logits of one request are not finite, or its stop rule fails."""
    real = engine_module.sample_next

    def spoil_logits(model: Any, cache: Any, rows: Any) -> Any:
        draws = real(model, cache, rows)
        draws.logprobs[[row.sampling.seed == 13 for row in rows]] = np.nan
        return draws

    def fail(_: Any) -> bool:
        raise ZeroDivisionError("by nothing")

    if cause is FloatingPointError:
        monkeypatch.setattr(engine_module, "sample_next", spoil_logits)
    engine, stops = make_engine(), {13: fail} if cause is ZeroDivisionError else {}

    async def three() -> list[Any]:
        calls = (
            engine.generate([5, 9, 31], _params(4, seed=seed), session=str(seed), stops=stops.get(seed))
            for seed in (12, 13, 14)
        )
        return await asyncio.gather(*calls, return_exceptions=True)

    first, broken, last = asyncio.run(three())
    assert len(first.token_ids) == len(last.token_ids) == 4
    check_error(broken, "worker-failed", cause.__name__)
    assert isinstance(broken.__cause__, cause)


@pytest.mark.parametrize("limits", [{"max_concurrency": 2}, {"cache_tokens": 256, "max_context": 64}])
def test_client_without_running_request_starts_at_once(
    make_engine: Callable[..., LocalEngine], model: Any, limits: dict[str, int]
) -> None:
    """And its requests, and those that made room for it, have the same tokens as without others."""
    ended: list[str] = []

    async def generate(engine: LocalEngine, client: str, number: int, count: int) -> list[int]:
        params = _params(count, seed=number)
        found = await engine.generate(_ids(20, number), params, session=f"{client}{number}", client=client)
        ended.append(client)
        return found.token_ids.tolist()

    async def scenario(engine: LocalEngine) -> list[list[int]]:
        many = [asyncio.create_task(generate(engine, "many", number, 40)) for number in range(6)]
        while not engine._running or len(engine._running[0].logprobs) < 5:
            await asyncio.sleep(0)
        few = [await generate(engine, "few", number, 3) for number in range(3)]
        return [*(await asyncio.gather(*many)), *few]

    found = asyncio.run(asyncio.wait_for(scenario(make_engine(model, **limits)), 100))
    assert ended == ["few"] * 3 + ["many"] * 6
    separate = [_generate(make_engine(model), _ids(20, number), _params(40, seed=number)) for number in range(6)]
    assert found[:6] == [completion.token_ids.tolist() for completion in separate]
    assert found[6:] == [tokens[:3] for tokens in found[:3]]


def test_client_without_running_request_interrupts_a_pass(
    make_engine: Callable[..., LocalEngine], passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "MAX_TOKENS_PER_PASS", 64)

    async def scenario(engine: LocalEngine) -> int:
        many = [
            asyncio.create_task(engine.generate(_ids(60, number), _params(2), session=str(number), client="many"))
            for number in range(6)
        ]
        while not passes.rows:
            await asyncio.sleep(0)
        await engine.generate(_ids(5), _params(1), session="few", client="few")
        computed = len(passes.rows)
        await asyncio.gather(*many)
        return computed

    assert asyncio.run(asyncio.wait_for(scenario(make_engine()), 100)) <= 3
