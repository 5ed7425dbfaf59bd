"""Normalization of rewards for estimators: subtract a baseline, divide by a deviation. Computed in float64."""

from __future__ import annotations

import math

import numpy as np

from rllm_core.algorithms import segments
from rllm_core.algorithms.magnitudes import find_power, scaled
from rllm_core.algorithms.segments import Offsets, Values

EPSILON = 1e-6
"""Added to a group's standard deviation before dividing by it."""
WHITENING_EPSILON = 1e-8
"""Added to the variance over all tokens before dividing by its root."""


def minus_group_mean(rewards: Values, offsets: Offsets) -> Values:
    """Return reward - group mean, (n,). It is exactly 0 in a group of equal rewards.

    A group with one trajectory has no mean to compare with, so it keeps its reward.
    """
    return np.where(segments.alone(offsets), rewards, segments.centred(rewards, offsets))


def standardized(rewards: Values, offsets: Offsets, *, ddof: int, epsilon: float = EPSILON) -> Values:
    """Return `minus_group_mean` / (group standard deviation + epsilon), (n,). A group with one trajectory has deviation
    1."""
    deviations = segments.standard_deviations(rewards, offsets, ddof=ddof)
    deviations[segments.sizes(offsets) == 1] = 1.0
    return minus_group_mean(rewards, offsets) / segments.spread(deviations + epsilon, offsets)


def whiten(values: Values, weights: Values | None = None) -> Values:
    """Return (value - mean) / sqrt(variance + 1e-8), (n,), with the variance at ddof 1.

    Each value counts `weights` times (whole numbers, or once if None). The result is exactly 0 if all counted values
    are equal. It is also 0 for a single value, for which verl raises ValueError.
    """
    counted = values if weights is None else values[weights > 0]
    if not counted.size or counted.max() == counted.min():
        return np.zeros(len(values))
    # Only large values are scaled, because squares of small values are negligible compared to the epsilon. The result
    # does not depend on the scale.
    power = max(0, find_power(counted))
    values = scaled(values, -power)
    total = float(len(values) if weights is None else weights.sum())
    distances: Values = values - _weighted_sum(values, weights) / total
    variance = _weighted_sum(distances * distances, weights) / (total - 1)
    distances /= math.sqrt(variance + math.ldexp(WHITENING_EPSILON, -2 * power))
    return distances


def _weighted_sum(values: Values, weights: Values | None) -> float:
    return float(values.sum() if weights is None else np.einsum("i,i->", values, weights))
