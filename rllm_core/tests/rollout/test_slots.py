"""Who gets a slot when there are fewer than rollouts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rllm_core.rollout.slots import Slots


class Rollouts:
    """Rollouts that hold their slot until the test ends them."""

    def __init__(self, number: int) -> None:
        self.slots = Slots(number)
        self.holding: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, priority: int) -> None:
        self._ends[name] = asyncio.Event()

        async def rollout() -> None:
            async with self.slots.reserve_slot(priority):
                self.holding.append(name)
                await self._ends[name].wait()

        self._tasks[name] = asyncio.ensure_future(rollout())
        await _run_pending_tasks()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await _run_pending_tasks()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await _run_pending_tasks()


async def _run_pending_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _run(body: Any) -> None:
    asyncio.run(body())


def test_lower_priorities_go_first_and_equal_ones_as_they_come() -> None:
    async def body() -> None:
        rollouts = Rollouts(1)
        for name, priority in [("first", 9), ("b", 2), ("c", 2), ("a", 1), ("val", -1)]:
            await rollouts.begin(name, priority)
        assert rollouts.holding == ["first"]
        for name in ("first", "val", "a", "b", "c"):
            await rollouts.end(name)
        assert rollouts.holding == ["first", "val", "a", "b", "c"]

    _run(body)


def test_who_was_cancelled_while_waiting_takes_no_slot() -> None:
    async def body() -> None:
        rollouts = Rollouts(1)
        for name in "abc":
            await rollouts.begin(name, 0)
        await rollouts.cancel("b")
        await rollouts.end("a")
        assert rollouts.holding == ["a", "c"]

    _run(body)


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("waiting", [["b"], ["b", "c"]])
def test_a_slot_that_comes_to_a_waiter_as_it_is_cancelled_goes_on(waiting: list[str], turns: int) -> None:
    async def body() -> None:
        rollouts = Rollouts(1)
        for name in ["a", *waiting]:
            await rollouts.begin(name, 0)
        releasing = asyncio.ensure_future(rollouts.end("a"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await rollouts.cancel("b")
        await releasing
        await rollouts.begin("d", 0)
        for name in [*waiting[1:], "d"]:
            await rollouts.end(name)
        assert rollouts.holding[-1] == "d"

    _run(body)


def test_a_failing_rollout_gives_its_slot_back() -> None:
    async def body() -> None:
        slots = Slots(1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with slots.reserve_slot(0):
                    raise ZeroDivisionError
        async with slots.reserve_slot(0):
            pass

    _run(body)
