"""Who gets a slot when there are fewer than rollouts."""

from __future__ import annotations

import asyncio

import pytest

from rllm_core.rollout.runner import Slots


class Rollouts:
    """Rollouts that hold their slot until the test ends them."""

    def __init__(self, number: int) -> None:
        self.slots = Slots(number)
        self.holding: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, priorities: dict[str, int]) -> None:
        for name, priority in priorities.items():
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.ensure_future(self._hold(name, priority))
            await _run_pending_tasks()

    async def _hold(self, name: str, priority: int) -> None:
        async with self.slots.reserve_slot(priority):
            self.holding.append(name)
            await self._ends[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await _run_pending_tasks()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await _run_pending_tasks()


async def _run_pending_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_slots_go_by_priority_then_arrival() -> None:
    async def body() -> None:
        rollouts = Rollouts(1)
        await rollouts.begin({"first": 9, "b": 2, "c": 2, "a": 1, "val": -1})
        assert rollouts.holding == ["first"]
        await rollouts.end("first", "val", "a", "b", "c")
        assert rollouts.holding == ["first", "val", "a", "b", "c"]

    asyncio.run(body())


def test_who_was_cancelled_while_waiting_takes_no_slot() -> None:
    async def body() -> None:
        rollouts = Rollouts(1)
        await rollouts.begin(dict.fromkeys("abc", 0))
        await rollouts.cancel("b")
        await rollouts.end("a")
        assert rollouts.holding == ["a", "c"]

    asyncio.run(body())


@pytest.mark.parametrize("turns", range(5))
@pytest.mark.parametrize("waiting", ["b", "bc"])
def test_slot_of_a_cancelled_waiter_is_released(waiting: str, turns: int) -> None:
    async def body() -> None:
        rollouts = Rollouts(1)
        await rollouts.begin(dict.fromkeys(f"a{waiting}", 0))
        releasing = asyncio.ensure_future(rollouts.end("a"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await rollouts.cancel("b")
        await releasing
        await rollouts.begin({"d": 0})
        await rollouts.end(*waiting[1:], "d")
        assert rollouts.holding[-1] == "d"

    asyncio.run(body())


def test_a_failing_rollout_gives_its_slot_back() -> None:
    async def body() -> None:
        slots = Slots(1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with slots.reserve_slot(0):
                    raise ZeroDivisionError

    asyncio.run(body())
