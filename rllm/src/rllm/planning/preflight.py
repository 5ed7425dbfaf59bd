"""The last checks before a run, which need the tasks or the file system, but no model."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from rllm.planning.async_training import too_stale
from rllm.planning.idle_checks import NEVER
from rllm.planning.plan import RunPlan
from rllm.planning.plugin_checks import too_few_tasks
from rllm.planning.problem import Problem, refused, settle, unused, warning
from rllm.planning.row_objective import RowObjective
from rllm.planning.sampling import make_sampler
from rllm.planning.task_checks import check_tasks, check_teachers, name_of_source
from rllm.rows.example import Conversation, is_empty_response
from rllm.rows.problem import naming
from rllm.rows.summary import RowSummary
from rllm_core.contracts.environment import Environment
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError, describe_function, failures_as
from rllm_core.notices import warn_once

OF_VALIDATION = ("rllm.rollout.n_val", "rllm.trainer.test_freq", "data.val_batch_size", "sampling.val.")
BATCH_SIZE = "data.train_batch_size"
SLOW_TO_LOAD = ("backend", "loss")
"""Kinds whose implementations import slow packages such as torch, which takes seconds."""
_GIVE_DATASET = "Set data.val_dataset, or pass val_dataset from Python. Otherwise remove the key."


def check_to_train(
    plan: RunPlan, train_tasks: Sequence[Task] | None, val_tasks: Sequence[Task] | None
) -> list[RowSummary]:
    """Check the plan against the run's tasks, environment and backend. Each warning is printed once.

    Return a summary of each of the run's datasets.

    Args:
        plan: the run's plan.
        train_tasks: training tasks. None if they were not read yet, and then the checks that need them are skipped.
        val_tasks: validation tasks, or None as for `train_tasks`.

    Raises:
        ConfigError: the run cannot work as configured.
        PluginError: the rollout engine cannot be loaded.
    """
    check_trains(plan)
    check_plugins(plan)
    if plan.engine is not None:
        plan.engine.registered.load()  # raises an error if a package that it needs is missing
    problems = [_step_is_filled(plan, train_tasks), _validation_has_tasks(plan, val_tasks)]
    # Stored episodes need no rollouts. If the run does not validate either, no workflow runs.
    if plan.rows is None and (not plan.off_policy or val_tasks):
        problems.insert(0, environment_is_set(plan))
    for line in [line for found in problems for line in settle(found, plan.config.rllm.unused_keys)]:
        warn_once(line)
    if plan.rows is None:
        summaries = check_tasks(plan, train_tasks or (), val_tasks or ())
        if train_tasks and not plan.config.rllm.trainer.val_only:
            make_sampler(plan, train_tasks)
        return summaries
    check_teachers(plan, train_tasks or ())
    splits = ((plan.train_dataset, train_tasks, "train"), (plan.val_dataset, val_tasks, "val"))
    return [
        check_rows(plan.rows, tasks, name_of_source(dataset, f"data.{split}_dataset"))
        for dataset, tasks, split in splits
        if tasks
    ]


def load_plugins(plan: RunPlan) -> None:
    """Load the plugins that a run loads before its first step, except those that take seconds.

    Raises:
        PluginError: a plugin cannot be loaded.
    """
    for entry in plan.registered():
        if entry.kind not in SLOW_TO_LOAD:
            entry.load()


def check_evaluation(plan: RunPlan, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if the tasks of an evaluation cannot be run and scored."""
    check_plugins(plan)
    settle(environment_is_set(plan), plan.config.rllm.unused_keys)
    check_tasks(plan, (), tasks)


def check_trains(plan: RunPlan) -> None:
    """Raise ConfigError if a training run has a backend that only samples."""
    if plan.backend.plugin.capabilities.trains or plan.config.rllm.trainer.val_only:
        return
    raise ConfigError(
        "backend-cannot-train",
        f"Backend {plan.backend.name!r} samples from a model and cannot train it.",
        "Train with another backend, such as --backend local. Use this backend with `rllm eval`.",
    )


def check_plugins(plan: RunPlan) -> None:
    """Run the checks of the chosen plugins. They raise ConfigError, and load no slow packages."""
    everything = [(plan.backend, plan.composed.backend_config)]
    everything += [(chosen.registered, chosen.params) for chosen in plan.chosen]
    for entry, params in everything:
        if entry.plugin.check is not None:
            with failures_as(PluginError, f"The check of {entry.kind} {entry.qualified_name}"):
                entry.plugin.check(params)
    backend, workflow = plan.backend, plan.workflow
    if backend.plugin.check_run is not None:
        with failures_as(PluginError, f"The check of backend {backend.qualified_name}"):
            backend.plugin.check_run(plan.config, plan.composed.backend_config)
    if workflow.plugin.check_run is not None:
        with failures_as(PluginError, f"The check of workflow {workflow.qualified_name}"):
            workflow.plugin.check_run(plan.config, workflow.params)
    _check_tools(plan)


def _check_tools(plan: RunPlan) -> None:
    """Raise ConfigError if no workflow runs the environment's tools, because the prompts would silently omit them."""
    if plan.environment is None or plan.workflow.plugin.calls_tools:
        return
    made = plan.environment.registered.load()
    if getattr(made, "tools", Environment.tools) is not Environment.tools:
        raise ConfigError(
            "workflow-without-tools",
            f"Environment {plan.environment.plugin.name!r} has tools, and workflow {plan.workflow.plugin.name!r} "
            "cannot call tools.",
            "Set rllm.workflow.name=tool_calling (pip install rllm), or another workflow that calls tools.",
        )


def environment_is_set(plan: RunPlan) -> Iterator[Problem]:
    if plan.environment is None and plan.workflow.plugin.needs_environment:
        yield refused(
            "no-environment",
            "rllm.env.name",
            f"Workflow {plan.workflow.plugin.name!r} needs an environment, and this run has none.",
            "Choose an environment with `rllm train NAME` or rllm.env.name=NAME, or choose another workflow.",
        )


def _source_of_tasks(plan: RunPlan) -> str:
    if plan.train_dataset is not None or plan.environment is None:
        return "data.train_dataset"
    return describe_function(plan.environment.registered.load().tasks)


def _step_is_filled(plan: RunPlan, tasks: Sequence[Task] | None) -> Iterator[Problem]:
    """Compare the number of tasks that a step draws with the number of available tasks."""
    composed, rollouts = plan.composed, plan.config.rllm.rollout.n
    if plan.config.rllm.trainer.val_only:
        return
    if tasks is not None and not tasks:
        yield refused(
            "no-training-tasks",
            "data.train_dataset",
            f"There are no training tasks: {_source_of_tasks(plan)} has none.",
            "Add a task to it, or choose other tasks with --data FILE.",
        )
    count = plan.tasks_per_step if tasks is None else min(plan.tasks_per_step, len(tasks))
    yield from too_few_tasks(plan, count)
    if tasks and composed.is_by_user(BATCH_SIZE) and plan.config.data.train_batch_size > len(tasks):
        text = (
            f"{composed.describe(BATCH_SIZE)}, and there are {len(tasks)} training tasks: a step draws each task once"
        )
        yield warning("step-not-full", BATCH_SIZE, text)
    if tasks and plan.config.rllm.trainer.total_batches < 0:
        yield from too_stale(plan, plan.config.rllm.trainer.total_epochs * -(-len(tasks) // count))
    key = plan.backend.plugin.minibatches_key
    if key and plan.workflow.plugin.one_role and composed.is_by_user(key) and composed.value(key) > count * rollouts:
        yield warning(
            "too-many-minibatches",
            key,
            f"{composed.describe(key)}, and a step makes {count * rollouts} rollouts ({count} tasks, rllm.rollout.n="
            f"{rollouts}): the number of minibatches cannot be larger",
        )


def _validation_has_tasks(plan: RunPlan, tasks: Sequence[Task] | None) -> Iterator[Problem]:
    if tasks is None or tasks:
        return
    composed = plan.composed
    option = find_validation_option(plan)
    hint = f"Add {option}, or remove the key." if option else _GIVE_DATASET
    if composed.config.rllm.trainer.val_only:
        text = "`rllm.trainer.val_only` is true, and there are no validation tasks."
        yield refused("no-validation-tasks", "rllm.trainer.val_only", text, hint)
    for key in sorted(composed.by_user):
        value = composed.value(key) if key.startswith(OF_VALIDATION) else None
        if value is not None and not (key == "rllm.trainer.test_freq" and value in NEVER):
            text = f"{composed.describe(key)} and has no effect: there are no validation tasks."
            yield unused("unused-key", key, text, hint)


def check_rows(rows: RowObjective, tasks: Iterable[Task], source: str) -> RowSummary:
    """Check all rows, and return their summary. Stored rollouts are checked when they are read.

    Args:
        rows: reads the rows.
        tasks: the rows.
        source: the file or the dataset, for errors.

    Raises:
        ConfigError: a part of a row cannot be used.
    """
    summary = RowSummary(source)
    for task in tasks:
        if type(task) is not Task:
            summary.rows += 1
            continue
        summary.add(task.data)
        with naming(f"{source}, row {task.id!r}"):
            examples = rows.read(task.data)
        summary.used.update(rows.used_columns(task.data))
        for example in examples:
            if isinstance(example, Conversation):
                summary.add_messages(example.messages)
                summary.untrained += len(example.untrained)
                summary.after_last += example.unused
                summary.empty += sum(map(is_empty_response, example.trained))
    summary.keep_columns(tasks)
    return summary


TASKS = 8
"""A number of validation tasks that all environments have."""


def find_validation_option(plan: RunPlan) -> str | None:
    """Return a command-line argument with which the environment has validation tasks. None if a dataset has them."""
    params = plan.environment.params if plan.environment else None
    if params is not None and hasattr(params, "val_directory"):
        return f"rllm.env.env_args.val_directory={shlex.quote(params.directory)}"
    return f"rllm.env.env_args.val_size={TASKS}" if hasattr(params, "val_size") else None
