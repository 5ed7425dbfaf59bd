"""Comparisons within a group that more than one estimator makes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms import segments
from rllm_core.algorithms.magnitudes import scaled
from rllm_core.algorithms.segments import Offsets, Values


def largest(rewards: Values, offsets: Offsets) -> tuple[Values, NDArray[np.bool_]]:
    """(n_group,) the largest reward of each group, and (n,) bool, the first element of each group that has it."""
    sizes = segments.sizes(offsets)
    tops = segments.maxima(rewards, offsets)
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
    distance = segments.centred(rewards, offsets)
    others = np.maximum(sizes - 1, 1)
    small, exponents = segments.in_range(distance, offsets)
    squares = segments.spread(segments.sums(small * small, offsets), offsets)
    # With d the distance from the mean, the others' squares about their own mean are sum(d^2) - d^2 n / (n - 1).
    variances = np.maximum(squares - small * small * sizes / others, 0.0) / np.maximum(sizes - 2, 1)
    deviations = scaled(np.where(sizes > 2, np.sqrt(variances), 0.0), np.repeat(exponents, segments.sizes(offsets)))
    # That difference loses precision only if one member, the largest or the smallest, is further out than all others
    # together. For these members the deviation of the others is computed directly.
    for direction in (1.0, -1.0):
        _, outermost = largest(direction * rewards, offsets)
        rest = np.concatenate(([0], np.cumsum(~outermost)))[offsets]
        deviations[outermost] = segments.standard_deviations(rewards[~outermost], rest, ddof=1)[
            segments.sizes(offsets) > 0
        ]
    deviations[segments.in_constant(rewards, offsets)] = 0.0
    return distance * sizes / others, deviations
