"""Check the first tasks of a run before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from rllm.planning.plan import RunPlan
from rllm.rows.summary import RowSummary
from rllm.rows.task_content import hashes_of
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError, failures_as
from rllm_core.notices import warn_once

FIRST = 3
"""Number of tasks checked by environment and rewards, for a split that is generated on demand."""
SPREAD = 100
"""Number of tasks whose teacher is checked, over a whole split that is generated on demand."""
COMPARED, NAMED = 20_000, 5
"""Number of tasks compared in each split, and number of task ids in a warning."""


def check_tasks(plan: RunPlan, train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> list[RowSummary]:
    """Check the tasks of both splits, and tasks that are in both. Return a summary of each dataset.

    The environment and the rewards check all tasks of a dataset and all tasks in memory.

    Raises:
        ConfigError: the environment cannot run a task, a reward cannot score it and ``on_missing_reward`` is error, or
            it has no teacher.
    """
    check_teachers(plan, train_tasks)
    splits = (
        (plan.train_dataset, train_tasks, "data.train_dataset"),
        (plan.val_dataset, val_tasks, "data.val_dataset"),
    )
    summaries = [_check_split(plan, dataset, tasks, key) for dataset, tasks, key in splits]
    if plan.train_dataset is not None and plan.val_dataset is not None:
        _warn_of_shared_tasks(train_tasks, val_tasks)
    return [summary for summary in summaries if summary is not None and summary.rows]


def name_of_source(dataset: PluginChoice[DatasetPlugin[Any]] | None, key: str) -> str:
    """Return the file of a dataset, or its name. `key` is the name of tasks without a dataset."""
    return key if dataset is None else str(getattr(dataset.params, "path", dataset.plugin.name))


def _check_split(
    plan: RunPlan, dataset: PluginChoice[DatasetPlugin[Any]] | None, tasks: Sequence[Task], key: str
) -> RowSummary | None:
    """Check the tasks of a split. Return None if they come from a generator, because only its first are made."""
    is_stored = dataset is not None or isinstance(tasks, list)
    summary = RowSummary(name_of_source(dataset, key))
    for task in tasks if is_stored else islice(tasks, FIRST):
        summary.add(task.data)
        with _naming(task, summary.source):
            _check_environment(plan, task)
            if plan.config.rllm.algorithm.on_missing_reward == "error":
                _check_rewards(plan, task)
    return summary if dataset is not None else None


def check_teachers(plan: RunPlan, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if a training task has no teacher.

    All tasks in memory are checked, the first tasks of a dataset on disk, and some tasks of a generator.
    """
    if plan.teacher is not None:
        if isinstance(tasks, list):
            checked: Sequence[Task] = tasks
        else:
            # The environment `mixed` lists the tasks of one environment after the tasks of the other.
            checked = tasks[:COMPARED] if plan.train_dataset is not None else tasks[:: len(tasks) // SPREAD + 1]
        plan.teacher.plugin.check_tasks(plan.teacher.params, checked)


def _check_environment(plan: RunPlan, task: Task) -> None:
    chosen = plan.environment
    if chosen is not None and chosen.plugin.check_task is not None:
        with failures_as(PluginError, f"`check_task` of environment {chosen.qualified_name}"):
            chosen.plugin.check_task(chosen.params, task.data)


@contextmanager
def _naming(task: Task, source: str) -> Iterator[None]:
    """Add the task and its source to an error."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(error.code, f"{error.message} This is task {task.id!r} of {source}.", error.hint) from error


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
                plugin.check_task(chosen.params, task.data)


def _warn_of_shared_tasks(train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
    """Warn about tasks in both splits, because they measure memory. Tasks with equal data are the same task."""
    trained = {_content(task) for task in islice(train_tasks, COMPARED)}
    shared = [task.id for task in islice(val_tasks, COMPARED) if _content(task) in trained]
    if shared:
        of = f"{min(len(val_tasks), COMPARED)} {'first ' if len(val_tasks) > COMPARED else ''}tasks"
        named = ", ".join(map(repr, shared[:NAMED]))
        warn_once(
            f"data.train_dataset and data.val_dataset share tasks: {len(shared)} of the {of} of data.val_dataset, such "
            f"as {named}. Validation on these measures memory. Choose validation rows that are not used for training."
        )


def _content(task: Task) -> bytes:
    return hashes_of(task)[0] if task.data else task.id.encode()
