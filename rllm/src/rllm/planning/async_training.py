"""Asynchronous training, in which rollout batches are generated ahead of updates: its defaults, its checks, and the
settings that ``--dry-run`` recommends.

Without correction, tokens sampled 4 updates earlier cost 18 of 42 points on AIME24. With correction they cost none
(AReaL, Fu et al. 2025, arXiv:2505.24298). So rollouts from older weights are corrected unless the user sets otherwise.
The recommended settings were measured with `guess` on `local`, see "What older tokens teach" in
docs/contributing/measurements.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rllm.config.compose import Composed
from rllm.config.layers import Tier
from rllm.config.paths import put_at, split_key
from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused, warning
from rllm.planning.unused_keys import replace_value
from rllm_core.pipeline.graph import count_rollout_stages

SECTION = "rllm.async_training"
THRESHOLD, PARTIAL = f"{SECTION}.staleness_threshold", f"{SECTION}.partial_rollout"
TIS = "rllm.algorithm.rollout_correction.tis_mode"
BYPASS = "rllm.algorithm.rollout_correction.bypass_mode"


def check_staleness_is_integer(plan: RunPlan) -> Iterator[Problem]:
    """Check that the staleness threshold is an integer, because it counts updates."""
    section = plan.config.rllm.async_training
    threshold = section.staleness_threshold
    if section.enable and not threshold.is_integer():
        less, more = math.floor(threshold), math.ceil(threshold)
        instead = f"{less} for fresher tokens" if less else "0 for synchronous training"
        yield refused(
            "fractional-staleness",
            THRESHOLD,
            f"{plan.composed.describe(THRESHOLD)}, and it must be a whole number of updates.",
            f"Set it to {more} (no token is older than with {threshold:g}), or to {instead}.",
        )


def staleness_is_within_the_run(plan: RunPlan) -> Iterator[Problem]:
    """Check the threshold against the number of steps, if it is set without reading the tasks."""
    yield from too_stale(plan, plan.config.rllm.trainer.total_batches)


def too_stale(plan: RunPlan, steps: int) -> Iterator[Problem]:
    """Reject a staleness threshold that no step of the run can reach."""
    staleness = plan.config.rllm.async_training.staleness
    if 0 < steps <= staleness:
        less = {1: "0 for synchronous training", 2: "1"}.get(steps, "1 or 2")
        yield refused(
            "staleness-too-large",
            THRESHOLD,
            f"{plan.composed.describe(THRESHOLD)}, and the run has {steps} steps: all rollouts would use the first "
            "weights.",
            f"Set {THRESHOLD} to {less}, or train for more steps.",
        )


def batches_are_generated_ahead(plan: RunPlan) -> Iterator[Problem]:
    """Warn if async training is on but has no effect: the threshold is 0, or the rejection mode uses it up."""
    section, mode = plan.config.rllm.async_training, plan.rejection.plugin
    if section.enable and not section.staleness_threshold and plan.composed.is_by_user(f"{SECTION}.enable"):
        yield warning(
            "async-without-effect",
            f"{SECTION}.enable",
            f"{SECTION}.enable is true and {THRESHOLD} is 0: training is synchronous, as with enable=false",
        )
    elif section.staleness and not plan.batches_ahead:
        yield warning(
            "async-without-effect",
            THRESHOLD,
            f"{THRESHOLD} is {section.staleness}, and rejection mode {mode.name} keeps groups over updates (at most "
            f"{mode.updates_waited}): nothing is generated ahead, and training is synchronous",
        )


def rollouts_may_overlap(plan: RunPlan) -> Iterator[Problem]:
    """Check that the backend, or the engine it hosts, declares the required overlap of sampling and updates."""
    section = plan.config.rllm.async_training
    if not section.staleness or plan.config.rllm.trainer.val_only:
        return
    who = f"Backend {plan.backend.name!r}" if plan.engine is None else f"Engine {plan.engine.plugin.name!r}"
    if not plan.overlap:
        yield refused(
            "no-overlap",
            THRESHOLD,
            f"{who} does not sample while weights are updated, and {plan.composed.describe(THRESHOLD)}.",
            f"Remove {SECTION}, or choose a backend or engine with overlap: see `rllm plugins info backend NAME`.",
        )
    elif section.pins_weights and "fixed" not in plan.overlap:
        yield refused(
            "weights-not-pinned",
            PARTIAL,
            f"{who} samples only with the latest weights, or does not report the weight version of tokens, "
            f"and `{PARTIAL}` is false.",
            f"Set {PARTIAL}=true. Rollouts then continue with new weights.",
        )
    elif not section.pins_weights and "latest" not in plan.overlap:
        yield refused(
            "unused-key",
            PARTIAL,
            f"{who} does not change weights within a rollout.",
            f"Remove {PARTIAL}. Each rollout then uses one fixed version of the weights.",
        )


def stages_may_run_ahead(plan: RunPlan) -> Iterator[Problem]:
    """Check that every stage before the last rollout stage may run ahead of updates."""
    if not plan.config.rllm.async_training.staleness:
        return
    cut = count_rollout_stages(plan.stages)
    rollout_stages = [stage.plugin.name for stage in plan.stages if stage.plugin.is_rollout_stage]
    if not rollout_stages:
        yield refused(
            "stage-order",
            "rllm.pipeline",
            f"`{THRESHOLD}` is {plan.config.rllm.async_training.staleness}, and no stage of rllm.pipeline can run "
            "ahead of updates.",
            "Put `generate` first, or set `is_rollout_stage=True` in the spec of the stage that generates rollouts.",
        )
    elif len(rollout_stages) > cut:
        name = plan.stages[cut].plugin.name
        yield refused(
            "stage-order",
            "rllm.pipeline",
            f"Stage {name!r} comes before {rollout_stages[-1]!r}, which runs ahead of updates, and does not declare "
            "that it may run ahead too.",
            f"Move it after {rollout_stages[-1]!r}. If it keeps no state, set `is_rollout_stage=True` in its spec.",
        )


def losses_have_a_ratio(plan: RunPlan) -> Iterator[Problem]:
    """Check that losses weight older tokens by a ratio. Without it the gradient is that for other weights."""
    section, tis_mode = plan.config.rllm.async_training, plan.config.rllm.algorithm.rollout_correction.tis_mode
    if not section.staleness or tis_mode is not None:
        return
    # With bypass_mode the rollout log-probs are the old log-probs, so no ratio exists. Then name that key.
    remove = f"Remove {BYPASS}" if plan.composed.value(BYPASS) else f"Remove {TIS} or set it to token"
    chosen = {"": plan.losses.default} | {f" of role {role!r}": loss for role, loss in plan.losses.by_role.items()}
    for whose, loss in chosen.items():
        if not loss.plugin.has_ratio:
            yield refused(
                "loss-without-ratio",
                "rllm.algorithm.loss_fn",
                f"Loss {loss.plugin.name!r}{whose} has no importance ratio to older weights, and `{THRESHOLD}` is "
                f"{section.staleness}.",
                f"{remove}, or choose another loss, such as ppo.",
            )


CHECKS = (
    check_staleness_is_integer,
    staleness_is_within_the_run,
    batches_are_generated_ahead,
    rollouts_may_overlap,
    stages_may_run_ahead,
    losses_have_a_ratio,
)
"""Functions that take a plan and yield its problems, in the order in which they run."""


def find_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield the problems that the checks of this module find."""
    for check in CHECKS:
        yield from check(plan)


CAP = "rllm.algorithm.rollout_correction.tis_cap"
BETA2 = "training.beta2"
LENGTHS = ("rllm.trainer.total_epochs", "rllm.trainer.total_batches", "rllm.algorithm.entropy.decay_steps")
BEST_CAP, BEST_BETA2, MAX_STALENESS = 5.0, 0.99, 4


class Scaling(NamedTuple):
    """Factors on a recipe for synchronous training."""

    learning_rate: float
    steps: float


UP_TO_2, UP_TO_4 = Scaling(0.7, 1), Scaling(0.45, 5 / 3)


@dataclass(frozen=True)
class Recommendation:
    """A setting to type, and the reason."""

    key: str
    value: Any
    reason: str


def recommend(plan: RunPlan) -> Iterator[Recommendation]:
    """Yield the settings that a run with older tokens should change. A key that the user set is not among them, except
    the staleness and a correction that is switched off."""
    if not plan.batches_ahead or plan.config.rllm.trainer.val_only:
        return
    staleness, correction = plan.config.rllm.async_training.staleness, plan.config.rllm.algorithm.rollout_correction
    corrects_itself = all(loss.plugin.corrects_rollouts for loss in plan.losses)
    if staleness > MAX_STALENESS:
        yield Recommendation(THRESHOLD, MAX_STALENESS, f"no setting was tested with tokens {staleness} updates old")
    if not corrects_itself and correction.preset is None:
        if not correction.is_active:
            yield Recommendation(TIS, "token", "without correction, the gradient is that of other weights")
        if correction.tis_cap < BEST_CAP and not plan.composed.is_by_user(CAP):
            yield Recommendation(CAP, BEST_CAP, f"a cap of {correction.tis_cap:g} biases the gradient of older tokens")
    yield from _optimizer_settings(plan, UP_TO_2 if staleness <= 2 else UP_TO_4)


def _optimizer_settings(plan: RunPlan, scaling: Scaling) -> Iterator[Recommendation]:
    composed, rate_key = plan.composed, plan.backend.plugin.learning_rate_key
    if composed.keys_below(rate_key) and not composed.is_by_user(rate_key):
        rate = float(f"{scaling.learning_rate * float(composed.value(rate_key)):.2g}")
        yield Recommendation(rate_key, rate, "a bad update shows its effect later, so steps should be shorter")
        if scaling.steps > 1 and not any(map(composed.is_by_user, LENGTHS)):
            for key in LENGTHS:
                if composed.value(key) > 0:
                    more = round(scaling.steps * composed.value(key))
                    yield Recommendation(key, more, "a smaller learning rate needs more steps")
    if composed.keys_below(BETA2) and not composed.is_by_user(BETA2) and float(composed.value(BETA2)) < BEST_BETA2:
        yield Recommendation(BETA2, BEST_BETA2, "it prevents large AdamW steps when gradients vanish")


def with_correction(plan: RunPlan) -> RunPlan:
    """Return the plan with decoupled PPO (Hilton et al. 2022, arXiv:2110.00641), unless the user set these keys.

    The trainer computes the old log-probs then. The ratio of these to the sampler's log-probs weights each token.
    Losses that use that ratio themselves get no second one. A preset decides all of this itself.
    """
    composed = plan.composed
    config = plan.config.rllm
    if not config.async_training.staleness or config.algorithm.rollout_correction.preset is not None:
        return plan
    if not _is_set(composed, BYPASS):
        composed = _with_value(composed, BYPASS, False)
    correct_themselves = all(loss.plugin.corrects_rollouts for loss in plan.losses)
    if not _is_set(composed, TIS) and not composed.value(BYPASS) and not correct_themselves:
        composed = _with_value(composed, TIS, "token")
    return replace(plan, composed=composed)


def _is_set(composed: Composed, key: str) -> bool:
    """True if a user set the key, now or at an earlier start of the run."""
    return composed.tiers[key] >= Tier.SAVED


def _with_value(composed: Composed, key: str, value: Any) -> Composed:
    tree = deepcopy(composed.tree)
    put_at(tree, split_key(key), value)
    return replace(
        composed,
        config=replace_value(composed.config, split_key(key), value),
        tree=tree,
        origins={**composed.origins, key: THRESHOLD},
        tiers={**composed.tiers, key: Tier.PACKAGED},
    )
