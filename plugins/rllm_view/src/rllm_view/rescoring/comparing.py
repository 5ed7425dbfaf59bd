"""How far two setups agree on one role: signs, correlation, the largest differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rllm_view.rescoring.scores import Floats, ScoredGroup
from rllm_view.rescoring.tallies import TokenTally

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
    tokens_changed: float
    """Share of sampled tokens whose sign differs from the reference."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One trajectory with different advantages under two setups."""

    group: ScoredGroup
    member: int
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


def agreement(groups: Sequence[ScoredGroup], tally: TokenTally, setup: int) -> Agreement:
    """Compare the setup of that index with the first one, over all trajectories that sampled a token."""
    advantages = np.concatenate([group.advantages[[0, setup]] for group in groups], axis=1)
    reference, other = advantages[:, np.isfinite(advantages).all(axis=0)]
    return Agreement(
        signs=_signs(reference, other, int(tally.changed[setup]) / max(tally.tokens, 1)),
        correlation=_correlation(reference, other),
        largest=_largest(groups, setup),
    )


def _signs(reference: Floats, other: Floats, tokens_changed: float) -> Signs:
    before, after = np.sign(reference), np.sign(other)
    n = max(len(reference), 1)
    return Signs(
        changed=int((before != after).sum()) / n,
        flipped=int((before * after < 0).sum()) / n,
        lost=int(((before != 0) & (after == 0)).sum()) / n,
        gained=int(((before == 0) & (after != 0)).sum()) / n,
        tokens_changed=tokens_changed,
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
            found.append(
                (
                    float(distances[member]),
                    Difference(
                        group=group, member=member, reference=float(reference[member]), other=float(other[member])
                    ),
                )
            )
    found.sort(key=lambda entry: -entry[0])
    return tuple(difference for _, difference in found[:LARGEST])
