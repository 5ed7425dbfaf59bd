"""Check the first tasks of a run before anything is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rllm.distillation.options import BySourceParams
from rllm.planning.plan import RunPlan
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError, failures_as
from rllm_core.notices import warn_once

FIRST = 3
"""Number of tasks checked by environment and rewards, for a split that is generated on demand."""
SPREAD = 100
"""Number of tasks whose teacher is checked, over a whole split that is generated on demand."""
COMPARED, NAMED = 20_000, 5
"""Number of tasks compared in each split, and number of task ids in a warning."""


def check_tasks(plan: RunPlan, train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
    """Check the first tasks of both splits, later tasks with other columns, and tasks that are in both splits.

    Raises:
        ConfigError: the environment cannot run a task, a reward cannot score it and ``on_missing_reward`` is error, or
            it has no teacher.
    """
    check_teachers(plan, train_tasks)
    of_train = _samples(train_tasks, plan.train_dataset is not None)
    of_val = _samples(val_tasks, plan.val_dataset is not None)
    for task in (*of_train, *of_val):
        _check_environment(plan, task)
        if plan.config.rllm.algorithm.on_missing_reward == "error":
            _check_rewards(plan, task)
    if plan.train_dataset is not None and plan.val_dataset is not None:
        _warn_of_shared_tasks(train_tasks, val_tasks)


def check_teachers(plan: RunPlan, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if a training task has no teacher.

    All tasks in memory are checked, the first tasks of a dataset on disk, and some tasks of a generator.
    """
    if plan.teacher is not None and isinstance(plan.teacher.params, BySourceParams):
        from rllm.distillation.by_source import check_tasks

        if isinstance(tasks, list):
            checked: Sequence[Task] = tasks
        else:
            # The environment `mixed` lists the tasks of one environment after the tasks of the other.
            checked = tasks[:COMPARED] if plan.train_dataset is not None else tasks[:: len(tasks) // SPREAD + 1]
        check_tasks(plan.teacher.params, checked)


def _samples(tasks: Sequence[Task], stored: bool) -> Iterator[Task]:
    """Yield the first tasks. If tasks are stored or in memory, also yield the first with each set of columns."""
    seen: set[frozenset[str]] = set()
    for number, task in enumerate(islice(tasks, COMPARED if stored or isinstance(tasks, list) else FIRST)):
        columns = frozenset(name for name, value in task.data.items() if value is not None)
        if number < FIRST or columns not in seen:
            yield task
        seen.add(columns)


def _check_environment(plan: RunPlan, task: Task) -> None:
    chosen = plan.environment
    if chosen is not None and chosen.plugin.check_task is not None:
        with failures_as(PluginError, f"`check_task` of environment {chosen.qualified_name}"):
            _look(chosen, task)


def _look(chosen: PluginChoice[Any], task: Task) -> None:
    """Run a plugin's check of a task, and add the task's id to an error."""
    try:
        chosen.plugin.check_task(chosen.params, task.data)
    except ConfigError as error:
        raise ConfigError(error.code, f"{error.message} This is task {task.id!r}.", error.hint) from error


def _check_rewards(plan: RunPlan, task: Task) -> None:
    for chosen in (entry.chosen for entry in plan.rewards):
        plugin = chosen.plugin
        if lacking := sorted(plugin.needs - set(task.data)):
            there = ", ".join(sorted(task.data)) or "nothing"
            raise ConfigError(
                "missing-column",
                f"Reward {plugin.name!r} reads {', '.join(map(repr, lacking))}, and task {task.id!r} has {there}.",
                f"Choose another reward, or add {', '.join(map(repr, lacking))} to the tasks.",
            )
        if plugin.check_task is not None:
            with failures_as(PluginError, f"`check_task` of reward {chosen.qualified_name}"):
                _look(chosen, task)


def _warn_of_shared_tasks(train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
    """Warn about tasks in both splits, because they measure memory. Tasks with equal data are the same task."""
    trained = {_digest(task) for task in islice(train_tasks, COMPARED)}
    shared = [task.id for task in islice(val_tasks, COMPARED) if _digest(task) in trained]
    if shared:
        of = f"{min(len(val_tasks), COMPARED)} {'first ' if len(val_tasks) > COMPARED else ''}tasks"
        named = ", ".join(map(repr, shared[:NAMED]))
        warn_once(
            f"data.train_dataset and data.val_dataset share tasks: {len(shared)} of the {of} of data.val_dataset, such "
            f"as {named}. Validation on these measures memory. Choose validation rows that are not used for training."
        )


def _digest(task: Task) -> bytes:
    text = json.dumps(task.data or task.id, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
