"""A common prefix of several prompts is computed once, and changes no token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from local_models import assert_as_without_cache, build_tiny

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_local.engine import LocalEngine
from rllm_local.pages import KEY_TOKENS

Check = Callable[[Any, list[int], SamplingParams, Completion], None]
Call = tuple[list[int], SamplingParams, str]


def _ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((seed, length)).integers(6, 70, length).tolist()


def _generate_all(engine: LocalEngine, calls: list[Call]) -> list[Completion]:
    async def scenario() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(ids, params, session=name) for ids, params, name in calls))

    return asyncio.run(asyncio.wait_for(scenario(), 100))


def _calls(prompts: list[list[int]], max_tokens: int = 4) -> list[Call]:
    return [
        (prompt, SamplingParams(max_tokens=max_tokens, seed=number), f"{number}")
        for number, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("name", ["model", "grouped_model", "qwen_model"])
def test_rollouts_at_one_prompt_compute_it_once(
    name: str, request: pytest.FixtureRequest, make_engine: Callable[..., LocalEngine], passes: Any
) -> None:
    model = request.getfixturevalue(name)
    calls = _calls([_ids(100)] * 8)
    answers = _generate_all(make_engine(model), calls)
    for (prompt, params, _), answer in zip(calls, answers, strict=True):
        assert_as_without_cache(model, prompt, params, answer)
    # The others put the prompt's last token through the model, whose logits they draw from.
    assert passes.rows[0] == [100]
    assert sorted(passes.rows[1]) == [1] * 8
    assert passes.tokens == 100 + 7 + 8 * 3


def test_groups_compute_common_prefix_and_each_prompt_once(
    make_engine: Callable[..., LocalEngine], passes: Any, model: Any
) -> None:
    system = _ids(4 * KEY_TOKENS)
    questions = [[*system, *_ids(2 * KEY_TOKENS + 3, seed)] for seed in range(1, 4)]
    calls = _calls([question for question in questions for _ in range(5)], max_tokens=1)
    answers = _generate_all(make_engine(), calls)
    for (prompt, params, _), answer in zip(calls, answers, strict=True):
        assert_as_without_cache(model, prompt, params, answer)
    assert passes.tokens == 4 * KEY_TOKENS + 3 * (2 * KEY_TOKENS + 3) + 12


def test_a_new_conversation_uses_the_longest_cached_prefix(
    make_engine: Callable[..., LocalEngine], passes: Any, model: Any
) -> None:
    engine = make_engine()
    history = _ids(90)
    _generate_all(engine, [(history[:40], SamplingParams(max_tokens=1), "short")])
    _generate_all(engine, [(history, SamplingParams(max_tokens=1), "long")])
    before, params = passes.tokens, SamplingParams(max_tokens=3, seed=3)
    branch = [*history[:77], *_ids(13, 5)]
    (answer,) = _generate_all(engine, [(branch, params, "branch")])
    assert passes.tokens - before == 13 + 2
    assert_as_without_cache(model, branch, params, answer)


def test_beginnings_of_old_weights_are_not_used(make_engine: Callable[..., LocalEngine]) -> None:
    model = build_tiny(3)
    engine = make_engine(model)
    calls = _calls([_ids(60)] * 3)
    _generate_all(engine, calls)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.sync_weights(1)
    renamed = [(prompt, params, f"new {name}") for prompt, params, name in calls]
    for (prompt, params, _), answer in zip(renamed, _generate_all(engine, renamed), strict=True):
        assert_as_without_cache(model, prompt, params, answer)


@pytest.mark.long
@pytest.mark.parametrize(("concurrency", "tokens"), [(3, 1 << 20), (16, 400), (1, 1)])
def test_few_pages_and_shared_prefixes_change_no_token(
    make_engine: Callable[..., LocalEngine], model: Any, concurrency: int, tokens: int
) -> None:
    engine = make_engine(max_context=400, max_concurrency=concurrency, cache_tokens=tokens)
    tree = _ids(120)

    async def conversation(number: int) -> list[tuple[list[int], SamplingParams, Completion]]:
        generator = np.random.default_rng(number)
        turns = []
        for turn in range(4):
            history = [*tree[: int(generator.integers(1, 120))], *_ids(int(generator.integers(0, 30)), number % 3)]
            params = SamplingParams(max_tokens=int(generator.integers(1, 40)), seed=4 * number + turn)
            # Some rollouts continue in their session, some start a new one and end it.
            session = f"{number}" if number % 2 else f"{number} {turn}"
            turns.append((history, params, await engine.generate(history, params, session=session)))
            if number % 2 == 0:
                await engine.end_session(session)
        return turns

    async def scenario() -> list[list[tuple[list[int], SamplingParams, Completion]]]:
        return await asyncio.gather(*(conversation(number) for number in range(5)))

    for turns in asyncio.run(asyncio.wait_for(scenario(), 200)):
        for turn in turns:
            assert_as_without_cache(model, *turn)


def test_event_loop_ending_before_copies_keeps_shared_pages(
    make_engine: Callable[..., LocalEngine], model: Any
) -> None:
    engine = make_engine()
    calls = _calls([_ids(100)] * 4, max_tokens=30)

    async def abandon() -> None:
        waiting = [asyncio.create_task(engine.generate(*call[:2], session=call[2])) for call in calls]
        while not any(request.session and request.session.source for request in engine._running):
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()

    asyncio.run(abandon())
    for (prompt, params, _), answer in zip(calls, _generate_all(engine, calls), strict=True):
        assert_as_without_cache(model, prompt, params, answer)


def test_session_of_many_turns_computes_new_tokens(make_engine: Callable[..., LocalEngine], passes: Any) -> None:
    """Two sessions compute their system prompt once."""
    engine, system = make_engine(max_context=512), _ids(100)
    histories, new = {"a": list(system), "b": list(system)}, len(system)
    for turn in range(30):
        for name, history in histories.items():
            history += _ids(6, 2 * turn + (name == "b"))
            params = SamplingParams(max_tokens=4, seed=turn)
            (answer,) = _generate_all(engine, [(history, params, name)])
            history += answer.token_ids.tolist()
            new += 6 + 4
    # The last token of each response is computed at the next turn.
    assert passes.tokens == new - 2


@pytest.mark.parametrize("length", [64, 100])
def test_rollouts_read_the_pages_of_their_prompt(length: int, make_engine: Callable[..., LocalEngine]) -> None:
    engine, pages = make_engine(), []
    calls = _calls([_ids(length)] * 8, max_tokens=3)

    async def scenario() -> None:
        done = asyncio.gather(*(engine.generate(ids, params, session=name) for ids, params, name in calls))
        while not done.done():
            pages.append({page.number for request in engine._running for page in request.session.pages})  # type: ignore[union-attr]
            await asyncio.sleep(0)
        await done

    asyncio.run(scenario())
    # Two whole pages of the prompt, and a page of each rollout.
    assert max(map(len, pages)) == 2 + 8
