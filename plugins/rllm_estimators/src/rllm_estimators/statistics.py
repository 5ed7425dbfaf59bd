"""What the estimators have in common: baselines, deviations and whitening that are exact where nothing differs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.segments import Offsets, Values

EPSILON = 1e-6
WHITENING_EPSILON = 1e-8


def alone(offsets: Offsets) -> NDArray[np.bool_]:
    """(n,) bool, which elements are the only ones of their group."""
    sizes = segments.sizes(offsets)
    return np.repeat(sizes == 1, sizes)


def equal(rewards: Values, offsets: Offsets) -> NDArray[np.bool_]:
    """(n,) bool, which elements belong to a group of equal rewards (of one or more)."""
    return np.repeat(segments.constant(rewards, offsets), segments.sizes(offsets))


def centred(rewards: Values, offsets: Offsets) -> Values:
    """(n,) reward - group mean, exactly 0 where the group's rewards are equal, so also in a group of one."""
    result = rewards - segments.spread(segments.means(rewards, offsets), offsets)
    # The mean of equal numbers is not always that number in floating point.
    result[equal(rewards, offsets)] = 0.0
    return result


def sample_deviations(rewards: Values, offsets: Offsets) -> Values:
    """(n_group,) standard deviations with ddof 1; 0 for groups of one and exactly 0 for groups of equal rewards."""
    sizes = segments.sizes(offsets)
    deviations = segments.standard_deviations(rewards, offsets) * np.sqrt(sizes / np.maximum(sizes - 1, 1))
    deviations[segments.constant(rewards, offsets)] = 0.0
    return deviations


def largest(rewards: Values, offsets: Offsets) -> tuple[Values, NDArray[np.bool_]]:
    """(n_group,) the largest reward of each group, and (n,) bool, the first element of each group that has it."""
    sizes = segments.sizes(offsets)
    filled = sizes > 0
    tops = np.zeros(len(sizes))
    if filled.any():
        tops[filled] = np.maximum.reduceat(rewards, offsets[:-1][filled])
    positions = np.flatnonzero(rewards == segments.spread(tops, offsets))
    # Positions ascend, so the first of each group is where the group's number changes.
    owner = np.repeat(np.arange(len(sizes)), sizes)[positions]
    first = np.zeros(len(rewards), np.bool_)
    first[positions[np.flatnonzero(np.diff(owner, prepend=-1))]] = True
    return tops, first


def against_others(rewards: Values, offsets: Offsets) -> tuple[Values, Values]:
    """(n,) reward - mean of the group's other members, and (n,) the others' standard deviation with ddof 1.

    Both are exactly 0 in groups of one; the deviation is exactly 0 where the others are equal or there is but one.
    """
    sizes = segments.spread(segments.sizes(offsets).astype(np.float64), offsets)
    distance = centred(rewards, offsets)
    others = np.maximum(sizes - 1, 1)
    squares = segments.spread(segments.sums(distance * distance, offsets), offsets)
    # With d the distance from the mean, the others' squares about their own mean are sum(d^2) - d^2 n / (n - 1).
    variances = np.maximum(squares - distance * distance * sizes / others, 0.0) / np.maximum(sizes - 2, 1)
    deviations = np.where(sizes > 2, np.sqrt(variances), 0.0)
    # That difference loses its digits only where one member is further out than all others together: the largest or
    # the smallest. Without these, the deviation is computed afresh.
    for direction in (1.0, -1.0):
        _, outermost = largest(direction * rewards, offsets)
        rest = np.concatenate(([0], np.cumsum(~outermost)))[offsets]
        deviations[outermost] = sample_deviations(rewards[~outermost], rest)[segments.sizes(offsets) > 0]
    deviations[equal(rewards, offsets)] = 0.0
    return distance * sizes / others, deviations


def whiten(values: Values, weights: Values | None = None) -> Values:
    """(n,) (value - mean) / sqrt(variance + 1e-8), the variance with ddof 1.

    Each value counts `weights` times (whole numbers; once when None). Exactly 0 where all that count are equal; so is
    a single value, where verl raises ValueError.
    """
    counts = np.ones(len(values)) if weights is None else weights
    counted = values[counts > 0]
    if not counted.size or counted.max() == counted.min():
        return np.zeros(len(values))
    total = counts.sum()
    distance = values - (values * counts).sum() / total
    variance = float((distance * distance * counts).sum() / (total - 1))
    whitened: Values = distance / math.sqrt(variance + WHITENING_EPSILON)
    return whitened
