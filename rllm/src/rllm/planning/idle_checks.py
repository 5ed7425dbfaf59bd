"""Find user settings that change nothing in a run, if the marks in the schema are not enough to find them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rllm.config.keys import covers, where_acts
from rllm.config.layers import Tier
from rllm.config.paths import split_key
from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, unused, warning
from rllm_core.contracts.backend import BackendPlugin
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.plugins.discovery import CORE
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.run_sections import NO_ENVIRONMENT
from rllm_core.schema.section import OptionRole, find_options

NEVER = (0, -1)
"""Values of a frequency that mean never."""
NAMED = 5
"""Keys that a warning names."""


def options_have_an_environment(plan: RunPlan) -> Iterator[Problem]:
    """Report options of an environment if no environment is chosen."""
    key, env = "rllm.env.env_args", plan.config.rllm.env
    if env.env_args and plan.environment is None:
        yield unused(
            "unused-key",
            key,
            f"{key} is {env.env_args!r} and has no effect: rllm.env.name is {NO_ENVIRONMENT}.",
            "Choose an environment: `rllm train NAME`.",
        )


def step_rewards_are_read(plan: RunPlan) -> Iterator[Problem]:
    """Report options that shape step rewards if no estimator reads step rewards."""
    params = plan.workflow.params
    if any(_reads_step_rewards(entry) for entry in plan.estimators):
        return
    switches = sorted(
        {name for entry in plan.estimators for name in find_options(type(entry.params), OptionRole.READS_STEP_REWARDS)}
    )
    for name in find_options(type(params), OptionRole.SHAPES_STEP_REWARDS):
        key = f"rllm.workflow.workflow_args.{name}"
        if getattr(params, name) and key in plan.composed.by_user:
            names = ", ".join(dict.fromkeys(entry.plugin.name for entry in plan.estimators))
            switch = f", set its option {' or '.join(switches)}" if switches else ""
            yield unused(
                "unused-key",
                key,
                f"{plan.composed.describe(key)} and has no effect: it changes step rewards, and estimator {names} "
                "reads only trajectory rewards.",
                f"Choose an estimator that needs step_rewards{switch}, or remove {key}.",
            )


def _reads_step_rewards(estimator: PluginChoice[EstimatorPlugin[Any]]) -> bool:
    switches = find_options(type(estimator.params), OptionRole.READS_STEP_REWARDS)
    return "step_rewards" in estimator.plugin.needs and all(getattr(estimator.params, name) for name in switches)


def reasoning_has_later_prompt(plan: RunPlan) -> Iterator[Problem]:
    """Report `rllm.accumulate_reasoning` if a rollout has only one prompt."""
    key, agent = "rllm.accumulate_reasoning", plan.config.rllm.agent
    if plan.composed.is_by_user(key) and plan.config.rllm.accumulate_reasoning and agent.max_steps == 1:
        yield unused(
            "unused-key",
            key,
            f"{plan.composed.describe(key)} and has no effect: rllm.agent.max_steps is 1, so a rollout has no later "
            "prompt that could keep the reasoning.",
            f"Raise rllm.agent.max_steps, or remove {key}.",
        )


def rejection_rejects(plan: RunPlan) -> Iterator[Problem]:
    """Warn about rejection with mode `none`, which drops nothing. A multiplier draws more tasks even then."""
    key, section = "rllm.rejection_sample.enable", plan.config.rllm.rejection_sample
    keeps_all = plan.rejection.registered.qualified_name == f"{CORE}/none"
    if section.enable and keeps_all and section.multiplier == 1 and plan.composed.is_by_user(key):
        yield warning(
            "unused-key",
            key,
            f"{plan.composed.describe(key)} and rllm.rejection_sample.mode is none: every group is trained on, as "
            "without rejection",
        )


def filtering_masks(plan: RunPlan) -> Iterator[Problem]:
    """Report filtering that is on, but masks no termination reason."""
    key, section = "rllm.compact_filtering.enable", plan.config.rllm.compact_filtering
    masks = [value for name, value in section if name.startswith("mask_")]
    if section.enable and not any(masks) and plan.composed.is_by_user(key):
        yield unused(
            "unused-key",
            key,
            f"{plan.composed.describe(key)} and has no effect: every rllm.compact_filtering.mask_* is false.",
            f"Set one of them to true, or remove {key}.",
        )


def checkpoints_are_many(plan: RunPlan) -> Iterator[Problem]:
    """Warn about `keep_checkpoints` without `save_freq`: each start of a run then saves one checkpoint, at its end."""
    key, trainer = "rllm.trainer.keep_checkpoints", plan.config.rllm.trainer
    if trainer.save_freq in NEVER and plan.composed.is_by_user(key) and not trainer.val_only:
        yield warning(
            "unused-key",
            key,
            f"{plan.composed.describe(key)} and rllm.trainer.save_freq is {trainer.save_freq}: the run makes one "
            "checkpoint, at its end. Set save_freq to make more",
        )


def dividing_advantages_has_a_divisor(plan: RunPlan) -> Iterator[Problem]:
    """Warn about the switch of a section if all its values are the defaults."""
    key, section = "rllm.stepwise_advantage.enable", plan.config.rllm.stepwise_advantage
    if section.enable and not section.normalize_by_steps and plan.composed.is_by_user(key):
        yield warning(
            "redundant-key",
            key,
            f"{plan.composed.describe(key)} and changes nothing: every step has its trajectory's advantage anyway, and "
            "normalize_by_steps is false.",
        )


def something_is_trained(plan: RunPlan) -> Iterator[Problem]:
    """Reject command-line keys without effect under ``val_only``. Files may contain them: they also serve training."""
    if not plan.config.rllm.trainer.val_only:
        return
    composed = plan.composed
    idle = [key for key in sorted(composed.by_user) if _acts_in_training(plan.backend.plugin, key)]
    typed = [key for key in idle if composed.tiers[key] is Tier.COMMAND_LINE]
    for key in typed:
        yield unused(
            "unused-key",
            key,
            f"{composed.describe(key)} and has no effect: rllm.trainer.val_only is true, and nothing is trained.",
            "Remove one of the two. Set rllm.rollout.n_val and sampling.val for validation.",
        )
    if not typed and idle:
        more = f" and {len(idle) - NAMED} more" if len(idle) > NAMED else ""
        yield warning(
            "unused-key",
            "rllm.trainer.val_only",
            f"rllm.trainer.val_only is true, and nothing is trained: {', '.join(idle[:NAMED])}{more} have no effect",
        )


def _acts_in_training(backend: BackendPlugin[Any], key: str) -> bool:
    """True if a key is only used in training. False for a key shared with the core: the core's key is reported."""
    path = split_key(key)
    if path[0] in RunConfig.model_fields:
        return where_acts(RunConfig, path) == "training"
    shared = any(key == row.native for row in backend.shared_keys)
    return not shared and any(covers(pattern, key) for pattern in backend.training_keys())


CHECKS = (
    options_have_an_environment,
    step_rewards_are_read,
    dividing_advantages_has_a_divisor,
    something_is_trained,
    reasoning_has_later_prompt,
    rejection_rejects,
    filtering_masks,
    checkpoints_are_many,
)
"""Functions that take a plan and yield its problems, in the order in which they run."""


def find_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield the problems that the checks of this module find."""
    for check in CHECKS:
        yield from check(plan)
