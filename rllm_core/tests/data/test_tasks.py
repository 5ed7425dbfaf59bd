"""Tasks that are made when they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from expecting import expect_error

from rllm.training.task_draws import TaskSchedule
from rllm_core.data.tasks import LazyTasks, RowIds, task_ids
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError


def _lazy(count: int, made: list[int]) -> LazyTasks:
    def make(index: int) -> Task:
        made.append(index)
        return Task(id=f"t{index}", data={"n": index})

    return LazyTasks([f"t{index}" for index in range(count)], make)


def test_only_requested_tasks_are_made() -> None:
    made: list[int] = []
    tasks = _lazy(10**6, made)
    assert (len(tasks), tasks[-1].id, [task.id for task in tasks[2:4]]) == (10**6, "t999999", ["t2", "t3"])
    assert made == [999_999, 2, 3]
    assert list(task_ids(_lazy(3, made))) == ["t0", "t1", "t2"] == task_ids([Task(id=f"t{n}") for n in range(3)])
    assert len(made) == 3
    # A billion rows take no memory.
    rows = LazyTasks(RowIds(range(10**9)), lambda index: Task(id=str(index), data={"n": index}))
    assert (len(rows), rows[-1].data) == (10**9, {"n": 10**9 - 1})


def test_a_digest_of_tasks_makes_none_of_them() -> None:
    made: list[int] = []
    lazy, eager = _lazy(100, made), [Task(id=f"t{index}", data={"n": index}) for index in range(100)]
    assert TaskSchedule(lazy, 8).digest() == TaskSchedule(eager, 8).digest()
    assert made == []


def test_index_beyond_the_end_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        _lazy(3, [])[3]
    assert [task.id for task in _lazy(3, [])] == ["t0", "t1", "t2"]


def test_a_task_that_cannot_be_made_is_named() -> None:
    def make(index: int) -> Task:
        raise ZeroDivisionError("no rest")

    with expect_error(PluginError, "tasks-failed", "'b'", "ZeroDivisionError: no rest", Path(__file__).name):
        LazyTasks(["a", "b"], make)[1]


def test_rllm_error_is_raised_unchanged() -> None:
    error = ConfigError("made-up", "The file is gone.")

    def make(index: int) -> Task:
        raise error

    with pytest.raises(ConfigError) as caught:
        LazyTasks(["a"], make)[0]
    assert caught.value is error


@pytest.mark.parametrize("wrong", [None, {"id": "a"}, Task(id="b")])
def test_created_task_must_have_its_id(wrong: object) -> None:
    with expect_error(PluginError, "bad-task-id", "'a'"):
        LazyTasks(["a"], lambda index: wrong)[0]  # type: ignore[arg-type, return-value]


def test_row_ids_are_the_numbers_as_text() -> None:
    assert list(RowIds(range(2, 5))) == ["2", "3", "4"]
    assert list(RowIds(np.array([7, 3]))[1:]) == ["3"]
    assert RowIds(range(10**9))[-1] == "999999999"


def test_row_numbers_must_all_differ() -> None:
    with pytest.raises(ValueError, match="row numbers differ"):
        RowIds(np.array([7, 3, 7]))
