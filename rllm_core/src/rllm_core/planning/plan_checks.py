"""Whether the plugins of a plan go together: losses, needs, scopes and step rewards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from rllm_core.config.unused import UnusedKeys
from rllm_core.contracts.backend import BackendPlugin
from rllm_core.contracts.chosen import Chosen, Registered
from rllm_core.contracts.estimator import ALWAYS_FILLED, FILLED_BY_STAGES, EstimatorPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.errors import ConfigError
from rllm_core.planning.plan import RunPlan
from rllm_core.plugins.discovery import CORE, IN_PROCESS
from rllm_core.plugins.first_party import home_of
from rllm_core.rollout.options import AgentWorkflowParams

ADVANTAGES = "batch.advantages"


def check_plan(plan: RunPlan, unused: UnusedKeys) -> None:
    """Raise ConfigError when plugins of a plan do not go together, or cannot do what is asked of them."""
    _check_needed_keys(plan)
    if plan.backend.plugin.capabilities.trains:  # what only samples has no use for losses
        for loss in plan.losses:
            _check_loss(loss, plan.backend)
        for chosen in (*plan.estimators, *plan.losses):
            _check_needs(chosen, plan)
    check_scope(plan, plan.tasks_per_step)
    _check_step_rewards(plan, unused)
    _check_reward_weights(plan)
    _check_multiplier(plan)
    _check_trackers(plan.trackers)
    _check_stop_texts(plan)


def _check_needed_keys(plan: RunPlan) -> None:
    if plan.environment is None:
        return
    name = plan.environment.plugin.name
    for key, example in plan.environment.plugin.needs_keys.items():
        if not plan.composed.value(key):
            raise ConfigError(f"Environment {name!r} needs `{key}`, and it is not set.", f'Add "{key}={example}".')


def _check_multiplier(plan: RunPlan) -> None:
    """Batches that are larger than what mode `dynamic` fills would leave a surplus that grows with every step."""
    multiplier = plan.config.rllm.rejection_sample.multiplier
    if multiplier > 1 and plan.rejection.registered.qualified_name == f"{CORE}/dynamic":
        raise ConfigError(
            f"`rllm.rejection_sample.multiplier` is {multiplier}, and mode dynamic draws as many tasks as it needs.",
            "Leave multiplier out, or choose mode group.",
        )


def _check_stop_texts(plan: RunPlan) -> None:
    if plan.workflow.plugin.stop_texts and not plan.stop_texts:
        engine = f"backend {plan.backend.name!r}" if plan.engine is None else f"engine {plan.engine.plugin.name!r}"
        raise ConfigError(
            f"Workflow {plan.workflow.plugin.name!r} ends replies at texts, and {engine} cannot.",
            "Choose another workflow or another backend; `rllm plugins info backend NAME` shows stop_texts.",
        )


def _check_trackers(trackers: Sequence[Chosen[TrackerPlugin[Any]]]) -> None:
    """The same tracker with the same options would write everything twice, into one file."""
    entries = [(chosen.registered.qualified_name, chosen.params) for chosen in trackers]
    for index, chosen in enumerate(trackers):
        if entries[index] in entries[:index]:
            raise ConfigError(
                f"rllm.trainer.logger[{index}]: {chosen.plugin.name} is chosen already, with the same options.",
                "Leave one of the two out, or give them different options.",
            )


def _check_loss(loss: Chosen[LossPlugin[Any]], backend: Registered[BackendPlugin[Any]]) -> None:
    can, entry = backend.plugin.capabilities, loss.registered
    if loss.plugin.only_on and backend.name not in loss.plugin.only_on:
        raise ConfigError(
            f"Loss {loss.plugin.name!r} can only be computed by backend {' or '.join(sorted(loss.plugin.only_on))}, "
            f"and this run has backend {backend.name}.",
            "Choose another loss with rllm.algorithm.loss_fn, or another backend.",
        )
    if can.installed_losses_only and entry.distribution == IN_PROCESS:
        raise ConfigError(
            f"Loss {loss.plugin.name!r} was registered by this program, and backend {backend.name!r} computes losses "
            "in other processes, which know what is installed alone.",
            "Put it into a package of its own: `rllm plugins new NAME --kind loss`, and install that.",
        )
    # A backend's own "ppo" is the one everybody knows, not what somebody else's package offers under that name.
    well_known = entry.distribution in (CORE, backend.distribution, home_of("loss", entry.name))
    if not can.custom_losses and (entry.name if well_known else entry.qualified_name) not in can.losses:
        raise ConfigError(
            f"Backend {backend.name!r} cannot compute loss {loss.plugin.name!r}.",
            f"It knows {', '.join(sorted(can.losses)) or 'none'}; set rllm.algorithm.loss_fn to one of these.",
        )


def _check_needs(chosen: Chosen[Any], plan: RunPlan) -> None:
    kind, name, backend = chosen.plugin.kind, chosen.plugin.name, plan.backend
    of_stages = chosen.plugin.needs & FILLED_BY_STAGES
    before = takewhile(lambda stage: ADVANTAGES not in stage.plugin.writes, plan.stages)
    unwritten = of_stages.difference(*(stage.plugin.writes for stage in before))
    if unwritten:
        raise ConfigError(
            f"{kind.capitalize()} {name!r} needs {', '.join(sorted(unwritten))}, and no stage before the advantages "
            "writes that.",
            "The stage greedy_baseline writes greedy_rewards; put it after impute_names.",
        )
    missing = chosen.plugin.needs - backend.plugin.capabilities.columns - ALWAYS_FILLED - of_stages
    if missing:
        raise ConfigError(
            f"{kind.capitalize()} {name!r} needs {', '.join(sorted(missing))}; "
            f"backend {backend.name!r} cannot fill that.",
            f"Choose another {kind} or another backend.",
        )


def check_scope(plan: RunPlan, tasks: int) -> None:
    """Raise ConfigError when steps of `tasks` tasks are too small for an estimator.

    With one task, statistics over all tasks of a step are those of one group under another name.
    """
    wide = [entry.plugin for entry in plan.estimators if entry.plugin.scope in ("role", "batch")]
    if wide and tasks == 1:
        raise ConfigError(
            f"Estimator {wide[0].name!r} has scope {wide[0].scope!r}: it compares with all tasks of a step, and a step "
            "of this run has one.",
            "Give the run two tasks or more, set data.train_batch_size to 2 or more, or choose an estimator of scope "
            "group, such as grpo.",
        )


def _check_step_rewards(plan: RunPlan, unused: UnusedKeys) -> None:
    """Shaping the rewards of steps means nothing to estimators that do not look at them."""
    params = plan.workflow.params
    if not isinstance(params, AgentWorkflowParams) or any(_reads_step_rewards(entry) for entry in plan.estimators):
        return
    for name in ("gamma", "reward_bonus_coeff"):
        key = f"rllm.workflow.workflow_args.{name}"
        if getattr(params, name) and key in plan.composed.by_user:
            names = ", ".join(dict.fromkeys(entry.plugin.name for entry in plan.estimators))
            unused.found(
                f"{plan.composed.given(key)} and has no effect: it changes the rewards of steps, and estimator {names} "
                "reads those of whole trajectories.",
                "Choose an estimator that needs step_rewards (and set its option use_step_rewards, if it has one), or "
                "leave it out.",
            )


def _reads_step_rewards(estimator: Chosen[EstimatorPlugin[Any]]) -> bool:
    """An estimator that can do with and without them has the option `use_step_rewards`."""
    return "step_rewards" in estimator.plugin.needs and getattr(estimator.params, "use_step_rewards", True)


def _check_reward_weights(plan: RunPlan) -> None:
    """A weight of another size than 1 means nothing to an estimator that brings every reward to one scale."""
    rescaling = [chosen.plugin.name for chosen in plan.estimators if chosen.plugin.rescales_components]
    lost = {entry.chosen.plugin.name: entry.weight for entry in plan.rewards if abs(entry.weight) not in (0.0, 1.0)}
    if rescaling and lost:
        said = ", ".join(f"{weight:g} of reward {name!r}" for name, weight in lost.items())
        weights = ", ".join(f"{name}: {weight:g}" for name, weight in lost.items())
        raise ConfigError(
            f"Estimator {rescaling[0]!r} brings every reward to one scale, where the weight {said} has no effect.",
            f"Leave it out of rllm.reward, and choose {{name: {rescaling[0]}, weights: {{{weights}}}}} as estimator.",
        )
