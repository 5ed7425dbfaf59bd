"""Tasks from rows that a program passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm.tasks.task_rows import tasks_from_rows
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError


def test_rows_of_a_program_are_tasks_or_their_data() -> None:
    class Row(dict[str, Any]):
        pass

    def rows() -> Iterator[Any]:
        yield Task(id="first", data={"q": 1})
        yield {"id": np.int64(7), "q": 2}
        yield Row(id="c", data_source="gsm")

    assert tasks_from_rows(rows(), "train_dataset") == [
        Task(id="first", data={"q": 1}),
        Task(id="7", data={"id": 7, "q": 2}),
        Task(id="c", data={"id": "c", "data_source": "gsm"}, data_source="gsm"),
    ]
    assert tasks_from_rows([], "train_dataset") == []
    row = {"q": 1}
    tasks = tasks_from_rows([row, Task(id="a"), {}], "train_dataset")
    row["q"] = 2
    assert [(task.id, task.data) for task in tasks] == [("0", {"q": 1}), ("a", {}), ("2", {})]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (["question"], ("bad-task", "train_dataset[0]", "'question'")),
        ([{}, None], ("bad-task", "train_dataset[1]")),
        ([{"id": 1}, {}], ("bad-task-id", "train_dataset[1]", "'id'", "train_dataset[0]")),
        ([{"id": 1}, Task(id="1")], ("duplicate-task-id", "train_dataset[1]", "'1'", "train_dataset[0]")),
        ([Task(id="1"), {}], ("duplicate-task-id", "train_dataset[1]", "'1'", "train_dataset[0]")),
        ([{"id": None}], ("bad-task-id", "train_dataset[0]", "'id'")),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_place(rows: list[Any], complaint: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *complaint):
        tasks_from_rows(rows, "train_dataset")


@pytest.mark.parametrize("rows", [5, "tasks.jsonl", b"rows", {"a": 1}, None, object], ids=repr)
def test_what_is_no_series_of_rows_is_refused(rows: Any) -> None:
    with expect_error(ConfigError, "bad-task", "train_dataset", repr(rows)):
        tasks_from_rows(rows, "train_dataset")
