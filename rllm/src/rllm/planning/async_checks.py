"""What a plan says about rounds that are played ahead of updates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, refused, warning
from rllm_core.pipeline.graph import stages_that_play

SECTION = "rllm.async_training"
THRESHOLD, PARTIAL = f"{SECTION}.staleness_threshold", f"{SECTION}.partial_rollout"
TIS = "rllm.algorithm.rollout_correction.tis_mode"
BYPASS = "rllm.algorithm.rollout_correction.bypass_mode"


def staleness_is_whole(plan: RunPlan) -> Iterator[Problem]:
    """It counts updates."""
    section = plan.config.rllm.async_training
    threshold = section.staleness_threshold
    if section.enable and not threshold.is_integer():
        less, more = math.floor(threshold), math.ceil(threshold)
        instead = f"{less} for fresher tokens" if less else "0 for rollouts and updates in turns"
        yield refused(
            "fractional-staleness",
            THRESHOLD,
            f"{plan.composed.given(THRESHOLD)}, and it counts updates: the tasks of a step begin together.",
            f"Set it to {more} (no token is older than with {threshold:g}), or to {instead}.",
        )


def staleness_is_within_the_run(plan: RunPlan) -> Iterator[Problem]:
    """As far as the number of steps is known without the tasks."""
    yield from too_stale(plan, plan.config.rllm.trainer.total_batches)


def too_stale(plan: RunPlan, steps: int) -> Iterator[Problem]:
    """A bound that no step of a run can reach is a mistake."""
    staleness = plan.config.rllm.async_training.staleness
    if 0 < steps <= staleness:
        yield refused(
            "staleness-too-large",
            THRESHOLD,
            f"{plan.composed.given(THRESHOLD)}, and the run has {steps} steps: all of it would be played with the "
            "first weights.",
            "Set it to 1 or 2, or make more steps.",
        )


def rounds_are_played_ahead(plan: RunPlan) -> Iterator[Problem]:
    """The switch without a bound, or with one that a rejection mode uses up, changes nothing."""
    section, mode = plan.config.rllm.async_training, plan.rejection.plugin
    if section.enable and not section.staleness_threshold and plan.composed.is_by_user(f"{SECTION}.enable"):
        yield warning(
            "async-without-effect",
            f"{SECTION}.enable",
            f"{SECTION}.enable is true and {THRESHOLD} is 0: rollouts and updates take turns, as without it",
        )
    elif section.staleness and not plan.rounds_ahead:
        yield warning(
            "async-without-effect",
            THRESHOLD,
            f"{THRESHOLD} is {section.staleness}, and rejection mode {mode.name} keeps groups over updates (at most "
            f"{mode.updates_waited}): nothing is played ahead, and rollouts and updates take turns",
        )


def rollouts_may_overlap(plan: RunPlan) -> Iterator[Problem]:
    """By what the backend, or the engine that it hosts, says it can do."""
    section = plan.config.rllm.async_training
    if not section.staleness or plan.config.rllm.trainer.val_only:
        return
    who = f"Backend {plan.backend.name!r}" if plan.engine is None else f"Engine {plan.engine.plugin.name!r}"
    if not plan.overlap:
        yield refused(
            "no-overlap",
            THRESHOLD,
            f"{who} does not sample while weights are updated, and {plan.composed.given(THRESHOLD)}.",
            f"Leave {SECTION} out, or choose another; `rllm plugins info backend NAME` shows overlap.",
        )
    elif section.pins_weights and "fixed" not in plan.overlap:
        yield refused(
            "weights-not-pinned",
            PARTIAL,
            f"{who} cannot sample with other weights than the newest, or does not say which weights sampled a token, "
            f"and `{PARTIAL}` is false.",
            f"Set {PARTIAL}=true: attempts go on with new weights.",
        )
    elif not section.pins_weights and "latest" not in plan.overlap:
        yield refused(
            "unused-key",
            PARTIAL,
            f"{who} does not change weights within an attempt.",
            f"Leave {PARTIAL} out: weights are pinned.",
        )


def stages_may_play_ahead(plan: RunPlan) -> Iterator[Problem]:
    """All that come before the last stage that plays."""
    if not plan.config.rllm.async_training.staleness:
        return
    cut = stages_that_play(plan.stages)
    players = [stage.plugin.name for stage in plan.stages if stage.plugin.is_rollout_stage]
    if not players:
        yield refused(
            "stage-order",
            "rllm.pipeline",
            f"`{THRESHOLD}` is {plan.config.rllm.async_training.staleness}, and no stage of rllm.pipeline plays ahead.",
            "Put `generate` first, or `is_rollout_stage=True` into the record of the stage that plays.",
        )
    elif len(players) > cut:
        name = plan.stages[cut].plugin.name
        yield refused(
            "stage-order",
            "rllm.pipeline",
            f"Stage {name!r} comes before {players[-1]!r}, which is played ahead of updates, and does not say that it "
            "may be.",
            f"Move it after {players[-1]!r}. If it keeps no state, set `is_rollout_stage=True` in its record.",
        )


def losses_have_a_ratio(plan: RunPlan) -> Iterator[Problem]:
    """What was sampled by older weights is weighed by a ratio, or the gradient is another policy's."""
    section, tis_mode = plan.config.rllm.async_training, plan.config.rllm.algorithm.rollout_correction.tis_mode
    if not section.staleness or tis_mode is not None:
        return
    # With rollout log-probs as old ones there is no ratio to correct by: that key is in the way, not the other.
    remove = f"Leave {BYPASS} out" if plan.composed.value(BYPASS) else f"Leave {TIS} out or set it to token"
    chosen = {"": plan.losses.default} | {f" of role {role!r}": loss for role, loss in plan.losses.by_role.items()}
    for whose, loss in chosen.items():
        if not loss.plugin.has_ratio:
            yield refused(
                "loss-without-ratio",
                "rllm.algorithm.loss_fn",
                f"Loss {loss.plugin.name!r}{whose} has no ratio to the policy that sampled, and `{THRESHOLD}` is "
                f"{section.staleness}.",
                f"{remove}, or choose another loss, such as ppo.",
            )
