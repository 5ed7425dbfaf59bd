"""Every model call of a rollout has its own seed, which depends on the call's prompt and not on its time."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.contracts.engine import SamplingParams
from rllm_core.rollout.runner import PerRolloutEngine
from rllm_core.seeding import call_seed, prompt_digest

SAMPLING = SamplingParams(max_tokens=3, seed=7)


def _seeds(engine: Any, *prompts: str, sampling: SamplingParams = SAMPLING) -> list[int]:
    own = PerRolloutEngine(engine)

    async def ask() -> None:
        for prompt in prompts:
            await own.generate([ord(character) for character in prompt], sampling, session="s")

    asyncio.run(ask())
    made = [sampling.seed for sampling in engine.samplings]
    engine.samplings.clear()
    return made


def test_order_of_calls_does_not_change_seeds(engine: Any) -> None:
    first, second, third = _seeds(engine, "a", "b", "ab")
    assert _seeds(engine, "ab", "a", "b") == [third, first, second]
    assert len({first, second, third}) == 3
    assert [first] != _seeds(engine, "a", sampling=SamplingParams(max_tokens=3, seed=8))


def test_the_same_prompt_again_is_another_sample(engine: Any) -> None:
    digest = prompt_digest(np.array([97], np.int32))
    once, again, other, third = _seeds(engine, "a", "a", "b", "a")
    assert len({once, again, other, third}) == 4
    assert [once, again] == [call_seed(7, digest), call_seed(7, digest, 1)] == _seeds(engine, "a", "a")


def test_repeated_failed_call_gives_the_same_sample(engine: Any) -> None:
    once, again = _seeds(engine, "a", "a")
    own, failures = PerRolloutEngine(engine), iter([True, False])

    def answer(prompt: str, sampling: SamplingParams) -> str:
        if next(failures):
            raise ConnectionError
        return "ok$"

    engine.answer = answer

    async def ask() -> None:
        with pytest.raises(ConnectionError):
            await own.generate([97], SAMPLING, session="s")
        await own.generate([97], SAMPLING, session="s")
        engine.answer = lambda prompt, sampling: "ok$"
        await own.generate([97], SAMPLING, session="s")

    asyncio.run(ask())
    assert [made.seed for made in engine.samplings] == [once, once, again]


def test_repeated_calls_keep_their_order(engine: Any) -> None:
    own, tried = PerRolloutEngine(engine), list[int | None]()

    async def ask(fails: bool) -> None:
        async def generate(prompt: Any, sampling: SamplingParams, *, session: str) -> Any:
            tried.append(sampling.seed)
            await asyncio.sleep(0)
            if fails:
                raise ConnectionError

        engine.generate = generate
        calls = (own.generate([1], SAMPLING, session=str(number)) for number in range(3))
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(ask(fails=True))
    asyncio.run(ask(fails=False))
    assert tried[3:] == tried[:3]


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.integers(0, 2**31 - 1)))
def test_only_equal_prompts_share_a_digest(one: list[int], other: list[int]) -> None:
    digests = [prompt_digest(np.array(ids, np.int32)) for ids in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


def test_everything_else_is_the_engines(engine: Any) -> None:
    own = PerRolloutEngine(engine)
    assert own.renderer is engine.renderer
    assert own.max_context == engine.max_context
    asyncio.run(own.end_session("s"))
    assert engine.ended == ["s"]
