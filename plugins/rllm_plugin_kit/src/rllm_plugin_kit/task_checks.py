"""Checks of tasks from an environment or a dataset."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import numpy as np

from rllm_core.data.types import Task

LOOKED_AT = 2000
"""Tasks of a large sequence that are looked at: from its start, and its last."""

Failure = Callable[[str, str], AssertionError]
"""`PluginContract.failure`."""


def read_some_tasks(tasks: Sequence[Task], failure: Failure) -> list[Task]:
    """Return the checked tasks by index. The sequence may make them on request."""
    try:
        indices = [*range(min(len(tasks), LOOKED_AT)), *([len(tasks) - 1] if len(tasks) > LOOKED_AT else [])]
        looked_at = [tasks[index] for index in indices]
    except Exception as error:
        raise failure(
            f"has tasks that cannot be read by index: {type(error).__name__}: {error}",
            "Return a sequence: `len(tasks)` and `tasks[index]`, the same task every time.",
        ) from error
    if strangers := [task for task in looked_at if not isinstance(task, Task)]:
        raise failure(f"has {strangers[0]!r:.80} among its tasks", "Return rllm_core.data.types.Task records.")
    return looked_at


def check_same_every_time(ask: Callable[[], list[Task]], failure: Failure) -> None:
    """Check also after the program has drawn random numbers. The generators are restored."""
    states = random.getstate(), np.random.get_state()
    try:
        asked = []
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            asked.append(ask())
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    if asked[0] != asked[1]:
        raise failure(
            "returns different tasks, or a different order, in a second call",
            "Make tasks a function of the options, with their own seed if they are random. A resumed run "
            "continues in the same order.",
        )


def check_ids(tasks: Sequence[Task], failure: Failure) -> None:
    """Check that each task has a unique id, because seeds, groups and episodes use it as their name."""
    seen: set[str] = set()
    for task in tasks:
        if not isinstance(task.id, str) or not task.id:
            raise failure(f"has a task with the id {task.id!r}", "Ids are text, and not empty.")
        if task.id in seen:
            raise failure(f"has several tasks with the id {task.id!r}", "Give each task a unique id.")
        seen.add(task.id)


def check_json(tasks: Sequence[Task], failure: Failure) -> None:
    """Check that a task's data is unchanged after it is written as JSON and read again."""
    for task in tasks:
        try:
            same = json.loads(json.dumps(task.data)) == task.data
        except (TypeError, ValueError) as error:
            raise failure(
                f"has data in task {task.id!r} that is not JSON: {error}",
                "Store only numbers, text, lists and mappings in Task.data. Load other data when the task runs.",
            ) from error
        if not same:
            raise failure(
                f"has data in task {task.id!r} that JSON changes",
                "Use lists instead of tuples, and text as the keys of mappings.",
            )
