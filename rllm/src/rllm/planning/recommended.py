"""Settings that ``--dry-run`` recommends for an asynchronous run, with reasons.

They were measured with `guess` on `local` (docs/contributing/measurements.md, "What older tokens teach").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rllm.planning.async_checks import THRESHOLD, TIS
from rllm.planning.plan import RunPlan

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
