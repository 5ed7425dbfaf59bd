"""Backward recurrences along many sequences at once, in linear time and without a loop over elements."""

from __future__ import annotations

import numpy as np

from rllm_core.algorithms import segments
from rllm_core.algorithms.segments import Offsets, Values

CHUNK = 65_536
"""How many elements are worked on at a time: what is needed for them stays in the processor's cache."""


def backward_sums(terms: Values, coefficients: Values) -> Values:
    """(n,) y with y[t] = terms[t] + coefficients[t] * y[t + 1].

    Coefficients are from 0 to 1; 0 ends a sequence, so sequences that lie end to end do not touch, and the last
    coefficient must be 0. Nothing is divided, and the time is linear.
    """
    result = np.empty_like(terms)
    following = 0.0
    for end in range(len(terms), 0, -CHUNK):
        part = slice(max(0, end - CHUNK), end)
        own = terms[part].copy()
        own[-1] += coefficients[end - 1] * following
        result[part] = _joined(own, coefficients[part])
        following = result[part.start]
    return result


def _joined(terms: Values, coefficients: Values) -> Values:
    """(n,) the same, with 0 for what follows the last.

    Neighbours are joined in pairs, which gives the same recurrence of half the length: 2 n additions in log2(n) rounds.
    """
    if not coefficients.any():
        return terms
    if len(terms) % 2:
        return _joined(np.append(terms, 0.0), np.append(coefficients, 0.0))[:-1]
    near, far = slice(0, None, 2), slice(1, None, 2)
    result = np.empty_like(terms)
    result[near] = _joined(terms[near] + coefficients[near] * terms[far], coefficients[near] * coefficients[far])
    following = np.append(result[near][1:], 0.0)
    result[far] = terms[far] + coefficients[far] * following
    return result


def unless_last(coefficient: float, offsets: Offsets) -> Values:
    """(n,) coefficients for `backward_sums`: the same one, but 0 at the last element of each piece."""
    coefficients = np.full(int(offsets[-1]), coefficient)
    coefficients[offsets[1:][segments.sizes(offsets) > 0] - 1] = 0.0
    return coefficients
