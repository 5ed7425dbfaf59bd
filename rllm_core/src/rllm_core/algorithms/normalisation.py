"""How rewards are put on one scale: a baseline taken off, a deviation divided by. For estimators, in float64."""

from __future__ import annotations

import math

import numpy as np

from rllm_core.algorithms import segments
from rllm_core.algorithms.magnitudes import power_of, scaled
from rllm_core.algorithms.segments import Offsets, Values

EPSILON = 1e-6
"""Added to a group's standard deviation before dividing by it."""
WHITENING_EPSILON = 1e-8
"""Added to a variance over all tokens before dividing by its root."""


def minus_group_mean(rewards: Values, offsets: Offsets) -> Values:
    """(n,) reward - group mean, exactly 0 in a group of equal rewards.

    A group of one has no mean to compare with: it keeps its reward.
    """
    return np.where(segments.alone(offsets), rewards, segments.centred(rewards, offsets))


def standardised(rewards: Values, offsets: Offsets, *, ddof: int, epsilon: float = EPSILON) -> Values:
    """(n,) `minus_group_mean` / (group standard deviation + epsilon); a group of one has deviation 1."""
    deviations = segments.standard_deviations(rewards, offsets, ddof=ddof)
    deviations[segments.sizes(offsets) == 1] = 1.0
    return minus_group_mean(rewards, offsets) / segments.spread(deviations + epsilon, offsets)


def whiten(values: Values, weights: Values | None = None) -> Values:
    """(n,) (value - mean) / sqrt(variance + 1e-8), the variance with ddof 1.

    Each value counts `weights` times (whole numbers; once when None). Exactly 0 where all that count are equal; so is
    a single value, where verl raises ValueError.
    """
    counted = values if weights is None else values[weights > 0]
    if not counted.size or counted.max() == counted.min():
        return np.zeros(len(values))
    # Only large values: below the epsilon the squares of small ones count for nothing. The result has no scale.
    power = max(0, power_of(counted))
    values = scaled(values, -power)
    total = float(len(values) if weights is None else weights.sum())
    distances: Values = values - _weighted_sum(values, weights) / total
    variance = _weighted_sum(distances * distances, weights) / (total - 1)
    distances /= math.sqrt(variance + math.ldexp(WHITENING_EPSILON, -2 * power))
    return distances


def _weighted_sum(values: Values, weights: Values | None) -> float:
    return float(values.sum() if weights is None else np.einsum("i,i->", values, weights))
