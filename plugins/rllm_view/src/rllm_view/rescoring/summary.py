"""Summary of a rescoring by role: the metrics of each setup, and its differences from the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rllm_core.contracts.estimator import Level, Scope
from rllm_view.rescoring.comparing import Agreement, agreement
from rllm_view.rescoring.rescore import Rescored
from rllm_view.rescoring.scores import ScoredGroup
from rllm_view.rescoring.setups import label_of


@dataclass(frozen=True, kw_only=True)
class SetupMetrics:
    """Metrics of one setup for one role."""

    label: str
    """The setup's label."""
    estimator: str
    """The role's estimator, with its options."""
    level: Level
    scope: Scope
    groups_without_signal: int
    """Number of groups in which every advantage is exactly 0."""
    mean: float
    """Mean advantage over trajectories."""
    mean_absolute: float
    tokens_zero: float
    """Share of sampled tokens whose advantage is exactly 0."""
    agreement: Agreement | None
    """Comparison with the reference. None for the reference."""


@dataclass(frozen=True, kw_only=True)
class RoleSummary:
    """Metrics of one role under every setup."""

    role: str
    groups: int
    trajectories: int
    setups: tuple[SetupMetrics, ...]
    """The reference comes first."""


def summaries_of(result: Rescored) -> list[RoleSummary]:
    """Return one summary for each role, in the order in which the roles appear."""
    roles: dict[str, list[ScoredGroup]] = {}
    for group in result.groups:
        roles.setdefault(group.role, []).append(group)
    return [
        RoleSummary(
            role=role,
            groups=len(groups),
            trajectories=sum(len(group.members) for group in groups),
            setups=tuple(_measure(result, index, role, groups) for index in range(len(result.setups))),
        )
        for role, groups in roles.items()
    ]


def _measure(result: Rescored, index: int, role: str, groups: Sequence[ScoredGroup]) -> SetupMetrics:
    setup, tally = result.setups[index], result.tokens[role]
    chosen = setup.estimators.get(role)
    advantages = np.concatenate([group.advantages[index] for group in groups])
    advantages = advantages[np.isfinite(advantages)]
    return SetupMetrics(
        label=setup.label,
        estimator=label_of(chosen),
        level=chosen.plugin.level,
        scope=chosen.plugin.scope,
        groups_without_signal=sum(not group.signal[index] for group in groups),
        mean=float(advantages.mean()) if advantages.size else 0.0,
        mean_absolute=float(np.abs(advantages).mean()) if advantages.size else 0.0,
        tokens_zero=int(tally.zero[index]) / max(tally.tokens, 1),
        agreement=agreement(groups, tally, index) if index else None,
    )
