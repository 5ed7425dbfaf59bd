"""Summary of a rescoring: metrics of each role and setup, differences, and agreement with the run's own metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllm.runs.metrics_file import METRICS, read_metrics
from rllm_core.contracts.estimator import Level, Scope
from rllm_view.rescoring.rescore import Rescored
from rllm_view.rescoring.scores import Floats, ScoredGroup
from rllm_view.rescoring.setups import label_of

LARGEST = 5
"""How many of the largest differences are kept, each from another group."""


@dataclass(frozen=True, kw_only=True)
class Signs:
    """Shares of trajectories whose sign differs from the reference. A sign is the sign of the mean over tokens."""

    changed: float
    flipped: float
    """Share that changed from positive to negative, or back."""
    lost: float
    """From something to 0."""
    gained: float
    """Share that changed from 0 to a different value."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One trajectory with different advantages under two setups."""

    group: str
    """Name for people, as `ScoredGroup.name`."""
    trajectory: str
    reward: float
    reference: float
    other: float


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Comparison of one setup with the reference, for one role."""

    signs: Signs
    correlation: float | None
    """Pearson's correlation over trajectories. None if all advantages of one of the two are equal."""
    largest: tuple[Difference, ...]
    """At most `LARGEST`, the largest first, one per group."""


def agreement(groups: Sequence[ScoredGroup], setup: int) -> Agreement:
    """Compare the setup of that index with the first one, over all trajectories that sampled a token."""
    advantages = np.concatenate([group.advantages[[0, setup]] for group in groups], axis=1)
    reference, other = advantages[:, np.isfinite(advantages).all(axis=0)]
    return Agreement(
        signs=_signs(reference, other),
        correlation=_correlation(reference, other),
        largest=_largest(groups, setup),
    )


def _signs(reference: Floats, other: Floats) -> Signs:
    before, after = np.sign(reference), np.sign(other)
    n = max(len(reference), 1)
    return Signs(
        changed=int((before != after).sum()) / n,
        flipped=int((before * after < 0).sum()) / n,
        lost=int(((before != 0) & (after == 0)).sum()) / n,
        gained=int(((before == 0) & (after != 0)).sum()) / n,
    )


def _correlation(reference: Floats, other: Floats) -> float | None:
    if len(reference) < 2 or np.ptp(reference) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(reference, other)[0, 1])


def _largest(groups: Sequence[ScoredGroup], setup: int) -> tuple[Difference, ...]:
    found = []
    for group in groups:
        reference, other = group.advantages[0], group.advantages[setup]
        distances = np.nan_to_num(np.abs(other - reference), nan=0.0)
        member = int(distances.argmax())
        if distances[member] > 0:
            difference = Difference(
                group=group.name,
                trajectory=group.members[member].name,
                reward=float(group.rewards[member]),
                reference=float(reference[member]),
                other=float(other[member]),
            )
            found.append((float(distances[member]), difference))
    found.sort(key=lambda entry: -entry[0])
    return tuple(difference for _, difference in found[:LARGEST])


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
    mean_absolute: float
    """Mean absolute advantage over trajectories."""
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
    setup = result.setups[index]
    chosen = setup.estimators.get(role)
    advantages = np.concatenate([group.advantages[index] for group in groups])
    advantages = advantages[np.isfinite(advantages)]
    return SetupMetrics(
        label=setup.label,
        estimator=label_of(chosen),
        level=chosen.plugin.level,
        scope=chosen.plugin.scope,
        groups_without_signal=sum(not group.signal[index] for group in groups),
        mean_absolute=float(np.abs(advantages).mean()) if advantages.size else 0.0,
        agreement=agreement(groups, index) if index else None,
    )


PREFIX = "advantage/"
TOLERANCE = 1e-6
"""Relative; the same computation on another machine may add in another order."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One figure that is not what the run logged."""

    step: int
    metric: str
    logged: float | None
    replayed: float | None


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Comparison of the run's own estimators, replayed, with its ``metrics.jsonl``."""

    steps: int
    """Number of compared steps."""
    equal: int
    """Number of steps whose ``advantage/…`` metrics are all equal."""
    first_deviation: Deviation | None


def reproduction_of(result: Rescored) -> Reproduction | None:
    """None where other estimators or other rules than the run's were asked for, or it left no metrics."""
    own = next((setup for setup in result.setups if setup.of_run), None)
    folder = result.source.run_folder
    if own is None or folder is None or not result.as_run or not (folder / METRICS).is_file():
        return None
    logged: dict[int, dict[str, float | None]] = {}
    for line in read_metrics(folder):
        logged.setdefault(line["step"], {}).update(_advantages(line))
    compared = [step for step in result.steps if step.step in logged]
    deviations = [
        _deviation(step.step, logged[step.step], _advantages(step.metrics.get(own.label, {}))) for step in compared
    ]
    return Reproduction(
        steps=len(compared),
        equal=deviations.count(None),
        first_deviation=next((deviation for deviation in deviations if deviation is not None), None),
    )


def _advantages(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: value for name, value in metrics.items() if name.startswith(PREFIX)}


def _deviation(step: int, logged: Mapping[str, float | None], replayed: Mapping[str, float | None]) -> Deviation | None:
    for metric in sorted(logged.keys() | replayed.keys()):
        was, now = logged.get(metric), replayed.get(metric)
        equal = was == now if was is None or now is None else math.isclose(was, now, rel_tol=TOLERANCE, abs_tol=1e-9)
        if not equal:
            return Deviation(step=step, metric=metric, logged=was, replayed=now)
    return None
