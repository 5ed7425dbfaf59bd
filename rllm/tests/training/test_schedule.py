"""Epochs, the digest of the tasks, and the seeds of everything random."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rllm.training.task_draws import TaskSchedule
from rllm_core.data.types import Task
from rllm_core.seeding import derive_seed


def _schedule(n_tasks: int, batch_size: int) -> TaskSchedule:
    return TaskSchedule([Task(id=str(index)) for index in range(n_tasks)], batch_size)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_an_epoch_has_enough_batches_for_all_tasks(n_tasks: int, batch_size: int, epoch: int) -> None:
    schedule = _schedule(n_tasks, batch_size)
    batches = range(epoch * schedule.steps_per_epoch, (epoch + 1) * schedule.steps_per_epoch)
    assert {schedule.epoch_of(batch) for batch in batches} == {epoch}
    assert 0 <= len(batches) * batch_size - n_tasks < batch_size


def test_seed_is_the_same_on_every_machine() -> None:
    assert derive_seed(0, "rollout", 7, "guess-3", 1) == 3133744676911803674
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


def test_digest_depends_on_ordered_ids_and_batch_size() -> None:
    def digest(ids: str, batch_size: int = 2, **fields: object) -> str:
        tasks = [Task(id=task_id, **fields) for task_id in ids.split()]  # type: ignore[arg-type]
        return TaskSchedule(tasks, batch_size).digest()

    same = digest("a b c")
    assert same == digest("a b c", data={"n": 1}, data_source="other")
    others = [digest("a b"), digest("a c b"), digest("a b d"), digest("a b c c"), digest("a b c", 3), digest("ab c")]
    assert len({same, *others}) == 7


def test_a_digest_is_the_same_on_every_machine() -> None:
    assert _schedule(3, 2).digest() == "2e98be869046829de56493cfbbca4a7140b15cb409214368d1cc39dbb10eab90"
