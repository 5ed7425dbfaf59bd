"""A resumed run and its tasks: which differences are found, how they are named, and which of them stop the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from expecting import expect_error

from rllm.rows.task_content import hash_of
from rllm.runs.checkpoint import Checkpoint
from rllm.training.resume_checks import RunTasks, TaskHashes
from rllm_core.data.tasks import LazyTasks
from rllm_core.data.types import Task
from rllm_core.errors import CheckpointError

TASKS = [Task(id=str(n), data={"question": f"{n} + {n}", "answer": str(2 * n)}, data_source="sums") for n in range(9)]


OTHER_SOURCE = "different data sources of 1 of 9 tasks ('8'). The option data_source sets them."


def numbered(tasks: Sequence[Task]) -> list[Task]:
    """The same tasks with their positions as ids, like rows without an id."""
    return [dataclasses.replace(task, id=str(number)) for number, task in enumerate(tasks)]


def changed(task: Task, **values: Any) -> Task:
    return dataclasses.replace(task, data={**task.data, **values})


def run_tasks(
    train: Sequence[Task], val: Sequence[Task] = (), on_changed: Literal["error", "warn"] = "error", dataset: Any = None
) -> RunTasks:
    trainer = SimpleNamespace(on_changed_source=on_changed)
    config = SimpleNamespace(rllm=SimpleNamespace(trainer=trainer))
    return RunTasks(SimpleNamespace(config=config, train_dataset=dataset, val_dataset=None), train, val)  # type: ignore[arg-type]


def checkpoint_of(tasks: RunTasks, directory: Path) -> Checkpoint:
    for name, content in tasks.files().items():
        (directory / name).write_bytes(content)
    return Checkpoint(directory, {})


@pytest.mark.parametrize(
    ("now", "change"),
    [
        (TASKS, None),
        ([dataclasses.replace(TASKS[0], data=dict(reversed(TASKS[0].data.items()))), *TASKS[1:]], None),
        ([*TASKS[:2], changed(TASKS[2], answer="5"), *TASKS[3:]], "different content of 1 of 9 tasks ('2')."),
        ([changed(task, n=1) for task in TASKS], "different content of 9 of 9 tasks ('0', '1', '2', '3', '4', …)."),
        ([changed(TASKS[0], n=1), *TASKS[1:8]], "different content of 1 of 9 tasks ('0'), and 1 removed at the end."),
        (
            [changed(TASKS[0], n=1), *TASKS[1:], Task(id="new")],
            "different content of 1 of 9 tasks ('0'), and 1 added at the end.",
        ),
        ([*TASKS, Task(id="new")], "1 added to 9 tasks, from task '9' on."),
        ([Task(id="new"), *TASKS], "1 added to 9 tasks, from task '0' on."),
        ([*TASKS, TASKS[0]], "1 added to 9 tasks, from task '9' on."),
        (TASKS[:-2], "2 of 9 tasks removed, after task '6'."),
        ([*TASKS[:3], *TASKS[4:]], "1 of 9 tasks removed, from task '3' on."),
        ([*TASKS[1:4], changed(TASKS[4], n=1), *TASKS[5:]], "2 of 9 tasks removed and 1 added, from task '0' on."),
        ([*TASKS[1:], Task(id="new")], "1 of 9 tasks removed and 1 added, from task '0' on."),
        ([TASKS[1], TASKS[0], *TASKS[2:]], "the same tasks in a different order, from task '0' on."),
        ([*TASKS[:8], dataclasses.replace(TASKS[8], data_source="other")], OTHER_SOURCE),
        ([*TASKS[:8], changed(TASKS[8], data_source="other")], OTHER_SOURCE),
    ],
)
def test_each_change_of_the_rows_is_named(now: Sequence[Task], change: str | None) -> None:
    was, tasks = TaskHashes.hash_tasks(TASKS, is_stored=True), numbered(now)
    found = TaskHashes.hash_tasks(tasks, is_stored=True)
    assert TaskHashes.from_bytes(found.to_bytes()).find_change(TaskHashes.from_bytes(was.to_bytes()), tasks) == change


def test_generated_tasks_are_compared_by_a_spread_sample() -> None:
    made: list[int] = []

    def generate(level: int, count: int = 1000) -> LazyTasks:
        def make(index: int) -> Task:
            made.append(index)
            return Task(id=f"t{index}", data={"level": level, "index": index})

        return LazyTasks([f"t{index}" for index in range(count)], make)

    was, same, other, more = (generate(1), generate(1), generate(2), generate(1, 1001))
    hashes = [TaskHashes.hash_tasks(tasks, is_stored=False) for tasks in (was, same, other, more)]
    assert len(made) <= 4 * 101
    assert hashes[1].find_change(hashes[0], same) is None
    assert hashes[2].find_change(hashes[0], other) == (
        "different content of 91 of 91 tasks ('t0', 't11', 't22', 't33', 't44', …)."
    )
    assert hashes[3].find_change(hashes[0], more) == "1000 tasks before, 1001 now, or a different kind of source."


@pytest.mark.parametrize(
    ("now", "same_ids", "on_changed", "code", "hint"),
    [
        ([changed(TASKS[0], answer="1"), *TASKS[1:]], True, "error", "source-changed", "on_changed_source=warn"),
        ([changed(TASKS[0], answer="1"), *TASKS[1:]], True, "warn", "", ""),
        (numbered(TASKS[1:]), False, "error", "run-changed", "start a new run with these weights: --model"),
        (numbered(TASKS[1:]), False, "warn", "run-changed", "start a new run with these weights: --model"),
    ],
)
def test_changed_training_tasks_stop_a_resumed_run(
    now: list[Task],
    same_ids: bool,
    on_changed: Literal["error", "warn"],
    code: str,
    hint: str,
    tmp_path: Path,
) -> None:
    checkpoint = checkpoint_of(run_tasks(TASKS), tmp_path)
    dataset = SimpleNamespace(params=SimpleNamespace(path="train.jsonl"), plugin=SimpleNamespace(name="jsonl"))
    warned: list[str] = []
    resumed = run_tasks(now, on_changed=on_changed, dataset=dataset)
    if code:
        with expect_error(CheckpointError, code, "Training tasks of train.jsonl", str(tmp_path), "'0'", hint):
            resumed.check_same(checkpoint, warned.append, same_ids=same_ids)
    else:
        resumed.check_same(checkpoint, warned.append, same_ids=same_ids)
    assert len(warned) == (not code)


def test_changed_validation_tasks_are_a_warning(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(run_tasks(TASKS, TASKS[:3]), tmp_path)
    warned: list[str] = []
    run_tasks(TASKS, TASKS[:2]).check_same(checkpoint, warned.append, same_ids=True)
    (warning,) = warned
    assert warning.startswith("Validation tasks changed after")
    assert "1 of 3 tasks removed, after task '1'." in warning


def test_checkpoints_of_earlier_versions_resume_with_a_warning(tmp_path: Path) -> None:
    warned: list[str] = []
    run_tasks(TASKS).check_same(Checkpoint(tmp_path, {}), warned.append, same_ids=True)
    (warning,) = warned
    assert "has no hashes of tasks" in warning


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value


class Picture:
    def __init__(self, value: int) -> None:
        self.pixels = bytes([value] * 3)

    def tobytes(self) -> bytes:
        return self.pixels


VALUES: list[Callable[[int], Any]] = [
    lambda n: {"a": n, "b": {1: n, "c": None}},
    lambda n: {f"word {each}" for each in range(n + 9)},
    lambda n: np.arange(2000) // (1500 + n),
    lambda n: Plain(n),
    lambda n: [Picture(n)],
    lambda n: b"bytes" * n,
    lambda n: f"\ud800 {n}",
    lambda n: float("nan") if n == 1 else 0.0,
]


@pytest.mark.parametrize("make", VALUES)
def test_hashes_are_equal_only_for_equal_values(make: Callable[[int], Any]) -> None:
    assert hash_of({"x": make(1)}) == hash_of({"x": make(1)}) != hash_of({"x": make(2)})
