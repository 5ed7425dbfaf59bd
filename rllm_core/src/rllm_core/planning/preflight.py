"""The last checks before a run: what needs the tasks or the file system, and still no model."""

from __future__ import annotations

from collections.abc import Sequence

from rllm_core.contracts.environment import Environment
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, PluginError, failures_as
from rllm_core.planning.plan import RunPlan
from rllm_core.planning.plan_checks import check_scope
from rllm_core.planning.task_checks import check_tasks
from rllm_core.rollout.options import AgentWorkflowParams

OF_VALIDATION = ("rllm.rollout.n_val", "rllm.trainer.test_freq", "data.val_batch_size", "sampling.val.")
NEVER = (0, -1)
"""Values of ``rllm.trainer.test_freq`` that ask for no validation."""


def preflight(plan: RunPlan, train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
    """Raise ConfigError when what a user asked for cannot be done with the run's tasks, environment or backend.

    Raises PluginError when the rollout engine cannot be loaded.
    """
    check_trains(plan)
    check_plugins(plan)
    if plan.engine is not None:
        plan.engine.registered.load()  # what it needs is installed, or this says what is not
    _check_world(plan)
    if train_tasks and not plan.config.rllm.trainer.val_only:
        check_scope(plan, min(plan.tasks_per_step, len(train_tasks)))
    check_tasks(plan, train_tasks, val_tasks)
    if val_tasks:
        return
    composed = plan.composed
    if composed.config.rllm.trainer.val_only:
        raise ConfigError("`rllm.trainer.val_only` is true, and there are no validation tasks.", _GIVE_SOME)
    for key in sorted(composed.by_user):
        value = composed.value(key) if key.startswith(OF_VALIDATION) else None
        if value is None or (key == "rllm.trainer.test_freq" and value in NEVER):
            continue
        raise ConfigError(f"{composed.given(key)} and has no effect: there are no validation tasks.", _GIVE_SOME)


def check_to_play(plan: RunPlan, tasks: Sequence[Task]) -> None:
    """Raise ConfigError when tasks cannot be played and scored, where nothing is trained."""
    check_plugins(plan)
    _check_world(plan)
    check_tasks(plan, (), tasks)


def check_trains(plan: RunPlan) -> None:
    """Raise ConfigError when a run shall train with a backend that only samples."""
    if plan.backend.plugin.capabilities.trains or plan.config.rllm.trainer.val_only:
        return
    raise ConfigError(
        f"Backend {plan.backend.name!r} samples from a model and cannot train it.",
        "Train with another, such as --backend local; `rllm eval` plays with this one.",
    )


def check_plugins(plan: RunPlan) -> None:
    """Raise ConfigError for what the chosen plugins see to be wrong without loading anything heavy."""
    everything = [(plan.backend, plan.composed.backend_config)]
    everything += [(chosen.registered, chosen.params) for chosen in plan.chosen]
    for entry, params in everything:
        if entry.plugin.check is not None:
            with failures_as(PluginError, f"The check of {entry.kind} {entry.qualified_name}"):
                entry.plugin.check(params)
    _check_tools(plan)


def _check_tools(plan: RunPlan) -> None:
    """Tools that no workflow runs would be left out of the prompts without a word."""
    if plan.environment is None or plan.workflow.plugin.calls_tools:
        return
    made = plan.environment.registered.load()
    if getattr(made, "tools", Environment.tools) is not Environment.tools:
        raise ConfigError(
            f"Environment {plan.environment.plugin.name!r} has tools, and workflow {plan.workflow.plugin.name!r} calls "
            "none.",
            "Set rllm.workflow.name=tool_calling (pip install rllm-tools), or another workflow that calls tools.",
        )


_GIVE_SOME = "Name some with data.val_dataset, or pass val_dataset from Python; or leave the key out."


def _check_world(plan: RunPlan) -> None:
    """The core's own workflows play with an environment; those that subclass them may bring a world of their own."""
    if plan.environment is None and type(plan.workflow.params) is AgentWorkflowParams:
        raise ConfigError(
            f"Workflow {plan.workflow.plugin.name!r} plays with an environment, and this run has none.",
            "Name one: `rllm train NAME` or rllm.env.name=NAME; or choose another workflow.",
        )
