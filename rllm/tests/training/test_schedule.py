"""Which tasks a step plays, and the seeds of everything random."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from rllm.training.schedule import TaskSchedule
from rllm_core.data.types import Task
from rllm_core.seeding import derive_seed


def _schedule(n_tasks: int, batch_size: int, seed: int = 0) -> TaskSchedule:
    return TaskSchedule([Task(id=str(index)) for index in range(n_tasks)], batch_size, seed)


def _epoch(schedule: TaskSchedule, epoch: int) -> list[str]:
    first = epoch * schedule.steps_per_epoch
    steps = range(first, first + schedule.steps_per_epoch)
    return [task.id for step in steps for task in schedule.batch(step)]


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**63), st.integers(0, 5))
def test_every_epoch_plays_every_task_once(n_tasks: int, batch_size: int, seed: int, epoch: int) -> None:
    schedule = _schedule(n_tasks, batch_size, seed)
    assert sorted(_epoch(schedule, epoch), key=int) == [str(index) for index in range(n_tasks)]
    steps = range(epoch * schedule.steps_per_epoch, (epoch + 1) * schedule.steps_per_epoch)
    assert {schedule.epoch_of(step) for step in steps} == {epoch}
    assert all(0 < len(schedule.batch(step)) <= batch_size for step in steps)


def test_only_the_last_batch_of_an_epoch_is_smaller() -> None:
    assert [len(_schedule(10, 4).batch(step)) for step in range(6)] == [4, 4, 2, 4, 4, 2]


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    schedule = _schedule(64, 8)
    assert _epoch(schedule, 3) == _epoch(_schedule(64, 8), 3)
    assert _epoch(schedule, 3) == _epoch(_schedule(64, 16), 3)
    orders = [_epoch(_schedule(64, 8, seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(one != other for one, other in itertools.combinations(orders, 2))


def test_steps_may_be_asked_for_in_any_order() -> None:
    schedule, again = _schedule(20, 3), _schedule(20, 3)
    forwards = {step: [task.id for task in schedule.batch(step)] for step in range(20)}
    assert forwards == {step: [task.id for task in again.batch(step)] for step in reversed(range(20))}


def test_a_seed_is_the_same_number_on_every_machine() -> None:
    assert derive_seed(0, "rollout", 7, "guess-3", 1) == 3133744676911803674


def test_seeds_fit_into_63_bits() -> None:
    assert all(0 <= derive_seed(seed, "place") < 2**63 for seed in range(1000))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, "a"), (1, "a")),
        ((0, "a"), (0, "b")),
        ((0, "a", 1), (0, "a", 2)),
        ((0, "a", 1), (0, "a", "1")),
        ((0, "ab", "c"), (0, "a", "bc")),
        ((0, 1, 23), (0, 12, 3)),
        ((0, "a"), (0, "a", 0)),
    ],
)
def test_different_places_have_different_seeds(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> None:
    assert derive_seed(*one) != derive_seed(*other)  # type: ignore[arg-type]


def test_a_digest_depends_on_ids_their_order_and_the_batch_size_only() -> None:
    def digest(ids: str, batch_size: int = 2, seed: int = 0, **fields: object) -> str:
        tasks = [Task(id=task_id, **fields) for task_id in ids.split()]  # type: ignore[arg-type]
        return TaskSchedule(tasks, batch_size, seed).digest()

    same = digest("a b c")
    assert same == digest("a b c", seed=9)
    assert same == digest("a b c", data={"n": 1}, data_source="other")
    others = [digest("a b"), digest("a c b"), digest("a b d"), digest("a b c c"), digest("a b c", 3), digest("ab c")]
    assert len({same, *others}) == 7


def test_a_digest_does_not_change_while_steps_are_drawn_and_is_the_same_on_every_machine() -> None:
    schedule = _schedule(3, 2)
    schedule.batch(5)
    assert schedule.digest() == "2e98be869046829de56493cfbbca4a7140b15cb409214368d1cc39dbb10eab90"
