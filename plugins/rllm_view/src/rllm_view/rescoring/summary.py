"""What a rescoring comes to, role by role: the figures of every setup, and each beside the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rllm_view.rescoring.comparing import Agreement, agreement
from rllm_view.rescoring.facts import GroupFacts, facts_of
from rllm_view.rescoring.laws import law_of
from rllm_view.rescoring.line_reasons import why
from rllm_view.rescoring.reason import Reason, Side
from rllm_view.rescoring.reasons import reasons
from rllm_view.rescoring.rescore import Rescored
from rllm_view.rescoring.scores import ScoredGroup
from rllm_view.rescoring.setups import Setup, label_of


@dataclass(frozen=True, kw_only=True)
class SetupMetrics:
    """One setup, for one role."""

    setup: str
    """Its label."""
    side: Side
    groups_without_signal: int
    """All of whose advantages are exactly 0."""
    mean: float
    """Over trajectories."""
    mean_absolute: float
    tokens_zero: float
    """Share of sampled tokens whose advantage is exactly 0."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One setup beside the reference, for one role."""

    setup: str
    """Its label."""
    side: Side
    agreement: Agreement
    why_largest: tuple[str, ...]
    """One line for each of `agreement.largest`."""
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, kw_only=True)
class RoleSummary:
    """One role."""

    role: str
    groups: int
    trajectories: int
    setups: tuple[SetupMetrics, ...]
    comparisons: tuple[Comparison, ...]
    """One for every setup but the first."""


def summaries_of(result: Rescored) -> list[RoleSummary]:
    """One per role, in the order in which the roles appear."""
    roles: dict[str, list[ScoredGroup]] = {}
    for group in result.groups:
        roles.setdefault(group.role, []).append(group)
    return [_summary(result, role, groups) for role, groups in roles.items()]


def _summary(result: Rescored, role: str, groups: Sequence[ScoredGroup]) -> RoleSummary:
    facts = facts_of(groups)
    figures = [_figures(result, setup, index, role, groups, facts) for index, setup in enumerate(result.setups)]
    return RoleSummary(
        role=role,
        groups=len(groups),
        trajectories=sum(len(group.members) for group in groups),
        setups=tuple(figures),
        comparisons=tuple(_comparison(result, role, groups, facts, figures[0].side, other) for other in figures[1:]),
    )


def _figures(
    result: Rescored, setup: Setup, index: int, role: str, groups: Sequence[ScoredGroup], facts: GroupFacts
) -> SetupMetrics:
    advantages = np.concatenate([group.advantages[index] for group in groups])
    advantages = advantages[np.isfinite(advantages)]
    chosen, tally = setup.estimators.of(role), result.tokens[role]
    return SetupMetrics(
        setup=setup.label,
        side=Side(
            label=label_of(chosen),
            setup=index,
            law=law_of(groups, facts, index),
            level=chosen.plugin.level,
            scope=chosen.plugin.scope,
        ),
        groups_without_signal=sum(not group.signal[index] for group in groups),
        mean=float(advantages.mean()) if advantages.size else 0.0,
        mean_absolute=float(np.abs(advantages).mean()) if advantages.size else 0.0,
        tokens_zero=int(tally.zero[index]) / max(tally.tokens, 1),
    )


def _comparison(
    result: Rescored,
    role: str,
    groups: Sequence[ScoredGroup],
    facts: GroupFacts,
    reference: Side,
    figures: SetupMetrics,
) -> Comparison:
    other = figures.side
    agreed = agreement(groups, result.tokens[role], other.setup)
    places = {id(group): index for index, group in enumerate(groups)}
    return Comparison(
        setup=figures.setup,
        side=other,
        agreement=agreed,
        why_largest=tuple(
            why(entry.group, places[id(entry.group)], facts, reference, other) for entry in agreed.largest
        ),
        reasons=tuple(reasons(groups, facts, reference, other)),
    )
