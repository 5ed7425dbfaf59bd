"""What the first tasks of a run show to be wrong, before anything is loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from rllm.planning.plan import RunPlan
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError, failures_as
from rllm_core.notices import warn_once

FIRST = 3
"""Tasks of a split that is made as it is played: environment and rewards look at these alone."""
COMPARED, NAMED = 20_000, 5
"""Tasks of each split that are looked at, and those that a warning names."""


def check_tasks(plan: RunPlan, train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
    """Look at the first tasks of both splits, at later ones with other columns, and at tasks that are in both.

    Raises:
        ConfigError: the environment cannot play a task, or a reward cannot score it and a missing reward ends the run.
    """
    of_train = _samples(train_tasks, plan.train_dataset is not None)
    of_val = _samples(val_tasks, plan.val_dataset is not None)
    for task in (*of_train, *of_val):
        _check_environment(plan, task)
        if plan.config.rllm.algorithm.on_missing_reward == "error":
            _check_rewards(plan, task)
    if plan.train_dataset is not None and plan.val_dataset is not None:
        _warn_of_shared_tasks(train_tasks, val_tasks)


def _samples(tasks: Sequence[Task], stored: bool) -> Iterator[Task]:
    """The first tasks, and of those that are stored or held the first with each set of columns."""
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
    """Let a plugin look at a task; what it refuses names the task."""
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
                "Choose another reward, or give the tasks what it reads.",
            )
        if plugin.check_task is not None:
            with failures_as(PluginError, f"`check_task` of reward {chosen.qualified_name}"):
                _look(chosen, task)


def _warn_of_shared_tasks(train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
    """A task that is trained on measures memory. Tasks with equal data are the same, whatever their ids and places."""
    trained = {_digest(task) for task in islice(train_tasks, COMPARED)}
    shared = [task.id for task in islice(val_tasks, COMPARED) if _digest(task) in trained]
    if shared:
        of = f"{min(len(val_tasks), COMPARED)} {'first ' if len(val_tasks) > COMPARED else ''}tasks"
        named = ", ".join(map(repr, shared[:NAMED]))
        warn_once(
            f"data.train_dataset and data.val_dataset share tasks: {len(shared)} of the {of} of data.val_dataset, such "
            f"as {named}. Validation on these measures memory. Name rows for validation that no training has."
        )


def _digest(task: Task) -> bytes:
    text = json.dumps(task.data or task.id, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
