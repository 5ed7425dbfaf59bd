"""The loss that a run trains on, and the default loss of its estimator.

A backend's YAML may set a loss (verl's sets `ppo`). The same config then has a different objective with that backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rllm.planning.plan import RunPlan
from rllm.planning.problem import Problem, warning
from rllm_core.schema.section import ROLE_LOSS

FALLBACK_LOSS = "importance_sampling"
"""The default of an estimator that names none."""
LOSS_KEY = "rllm.algorithm.loss_fn"


@dataclass(frozen=True, kw_only=True)
class LossInForce:
    """The loss of one role, or of all roles that nothing is set for."""

    role: str | None
    estimator: str
    loss: str
    default: str
    """The loss that the estimator has when no loss is set."""
    key: str
    """The config key that chooses, or would choose, `loss`."""
    origin: str
    """Source of `loss`: ``backend verl``, ``command line``, …, or the estimator."""
    by_user: bool
    """True if a user chose it for this run, now or at an earlier start of the run."""

    @property
    def is_default(self) -> bool:
        return self.loss == self.default

    def word(self, loss: str) -> str:
        """Return the override to add to the command line to train on `loss`."""
        return f"--loss {loss}" if self.role is None else f"rllm.algorithm.loss_map.{self.role}={loss}"


def losses_in_force(plan: RunPlan) -> list[LossInForce]:
    """Return the loss for all roles, then for each role with an estimator or a loss in the config."""
    roles = dict.fromkeys((None, *plan.estimators.by_role, *plan.losses.by_role))
    return [_find_loss(plan, role) for role in roles]


def other_losses(plan: RunPlan) -> Iterator[Problem]:
    """Warn about each loss that is not the estimator's default and that no user chose."""
    for entry in losses_in_force(plan) if plan.estimates else ():
        if entry.is_default or entry.by_user:
            continue
        of_role = "" if entry.role is None else f" of role {entry.role}"
        yield warning(
            "loss-of-other-estimator",
            entry.key,
            f"the loss{of_role} is {entry.loss} ({entry.key} from {entry.origin}). Estimator {entry.estimator} has "
            f"{entry.default} by default, and trains on it with backends that set no loss. Add "
            f"`{entry.word(entry.default)}` for the same objective with every backend, or `{entry.word(entry.loss)}` "
            "to keep this one",
        )


def _find_loss(plan: RunPlan, role: str | None) -> LossInForce:
    chosen = plan.losses.default if role is None else plan.losses.get(role)
    estimator = plan.estimators.default if role is None else plan.estimators.get(role)
    key = _choosing_key(plan, role)
    names = plan.composed.keys_below(key)
    chosen_by_user = plan.composed.by_user | plan.composed.by_user_before
    is_set = key != LOSS_KEY or plan.config.rllm.algorithm.loss_fn is not None
    return LossInForce(
        role=role,
        estimator=estimator.plugin.name,
        loss=chosen.plugin.name,
        default=estimator.plugin.default_loss or FALLBACK_LOSS,
        key=key,
        origin=plan.composed.origins[names[0]] if is_set else f"estimator {estimator.plugin.name}",
        by_user=is_set and any(name in chosen_by_user for name in names),
    )


def _choosing_key(plan: RunPlan, role: str | None) -> str:
    """Return a role's own key if it is set. Otherwise return the key for all roles."""
    algorithm = plan.config.rllm.algorithm
    if role in algorithm.loss_map:
        return f"rllm.algorithm.loss_map.{role}"
    estimator = algorithm.estimator_map.get(role, "") if role is not None else ""
    if isinstance(estimator, dict) and ROLE_LOSS in estimator:
        return f"rllm.algorithm.estimator_map.{role}.{ROLE_LOSS}"
    return LOSS_KEY
