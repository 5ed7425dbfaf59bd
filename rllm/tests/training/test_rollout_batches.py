"""Order of running rollout batches, and their end when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rllm.training.rollout_batches import RolloutBatches
from rllm_core.contracts.train_step import TrainStep


class World:
    """RolloutBatches that end when the test calls `end`."""

    def __init__(self, ahead: int, taken: int = 0) -> None:
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self._ends: dict[int, asyncio.Future[None]] = {}
        self.batches = RolloutBatches(self._begin, self._generate, ahead=ahead, taken=taken)

    def _begin(self, index: int, before: int) -> TrainStep:
        self._ends[index] = asyncio.get_running_loop().create_future()
        return TrainStep(global_step=before, epoch=0, total_steps=9, tasks=[], task_batch=index)

    async def _generate(self, step: TrainStep) -> None:
        self.begun.append(step.task_batch)
        try:
            await self._ends[step.task_batch]
        except asyncio.CancelledError:
            self.cancelled.append(step.task_batch)
            raise

    def end(self, *batches: int) -> None:
        for index in batches:
            self._ends[index].set_result(None)

    def fail(self, index: int) -> None:
        self._ends[index].set_exception(ZeroDivisionError(f"batch {index}"))


Body = Callable[[World], Awaitable[None]]


def with_world(ahead: int, taken: int = 0) -> Callable[[Body], Callable[[], None]]:
    """Make a test of a coroutine function that receives a world, which is closed after it."""

    def decorate(body: Body) -> Callable[[], None]:
        async def run() -> None:
            world = World(ahead, taken)
            await body(world)
            await world.batches.close()

        return lambda: asyncio.run(run())

    return decorate


async def _run_pending_tasks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("ahead", "begun"), [(0, [3]), (1, [3, 4]), (4, [3, 4, 5, 6, 7])])
def test_one_batch_more_than_ahead_is_running(ahead: int, begun: list[int]) -> None:
    @with_world(ahead, taken=3)
    async def run(world: World) -> None:
        assert world.batches.start(9).task_batch == 3
        await _run_pending_tasks()
        assert world.begun == begun

    run()


@with_world(ahead=1)
async def test_batch_begins_when_the_next_is_requested(world: World) -> None:
    world.batches.start(9)
    await _run_pending_tasks()
    world.end(0)
    assert (await world.batches.take()).task_batch == 0
    await _run_pending_tasks()
    assert (world.begun, world.batches.taken) == ([0, 1], 1)
    world.batches.start(8)
    await _run_pending_tasks()
    assert world.begun == [0, 1, 2]


@with_world(ahead=2)
async def test_batches_are_taken_in_order(world: World) -> None:
    world.batches.start(9)
    world.end(2, 1)
    await _run_pending_tasks()
    taking = asyncio.ensure_future(world.batches.take())
    await _run_pending_tasks()
    assert not taking.done()
    world.end(0)
    assert [(await taking).task_batch, (await world.batches.take()).task_batch] == [0, 1]


@with_world(ahead=5)
async def test_no_batch_begins_without_a_step_for_it(world: World) -> None:
    world.batches.start(2)
    await _run_pending_tasks()
    assert world.begun == [0, 1]


@with_world(ahead=2)
async def test_failure_of_a_later_batch_is_raised_early(world: World) -> None:
    world.batches.start(9)
    taking = asyncio.ensure_future(world.batches.take())
    await _run_pending_tasks()
    world.fail(2)
    with pytest.raises(ZeroDivisionError, match="batch 2"):
        await taking
    await world.batches.close()
    assert world.cancelled == [0, 1]


@with_world(ahead=1)
async def test_a_failure_meanwhile_is_raised_before_training(world: World) -> None:
    world.batches.start(9)
    world.end(0)
    world.fail(1)
    await _run_pending_tasks()
    with pytest.raises(ZeroDivisionError, match="batch 1"):
        await world.batches.take()


@with_world(ahead=3)
async def test_running_batches_end_before_close_returns(world: World) -> None:
    world.batches.start(9)
    await _run_pending_tasks()
    await world.batches.close()
    assert world.cancelled == [0, 1, 2, 3]


def test_seconds_of_waiting_do_not_count_as_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 20.0, 29.0])
    monkeypatch.setattr("rllm.training.rollout_batches.time.perf_counter", lambda: next(clock))

    @with_world(ahead=1)
    async def run(world: World) -> None:
        step = world.batches.start(9)
        step.timing_dict = {"generate": 2.0, "greedy_baseline": 1.0}
        world.end(step.task_batch)
        assert (await world.batches.take()).generated_ahead == 2.5
        step = world.batches.start(8)
        step.timing_dict = {"generate": 2.0}
        world.end(step.task_batch)
        assert (await world.batches.take()).generated_ahead == 0.0

    run()


@with_world(ahead=2)
async def test_settle_waits_for_all_running_batches(world: World) -> None:
    assert await world.batches.settle() == []
    world.batches.start(9)
    settling = asyncio.ensure_future(world.batches.settle())
    world.end(0, 2)
    await _run_pending_tasks()
    assert not settling.done()
    world.end(1)
    assert [step.task_batch for step in await settling] == [0, 1, 2]
    assert (world.batches.taken, world.begun) == (0, [0, 1, 2])
    assert (await world.batches.take()).task_batch == 0


@with_world(ahead=2)
async def test_settle_raises_the_error_of_a_batch(world: World) -> None:
    world.batches.start(9)
    world.fail(1)
    with pytest.raises(ZeroDivisionError, match="batch 1"):
        await world.batches.settle()
