"""Backward recurrences along many sequences at once, in linear time; only the last few elements are looped over."""

from __future__ import annotations

import numpy as np

from rllm_core.algorithms import segments
from rllm_core.algorithms.segments import Offsets, Values

CHUNK = 65_536
"""How many elements are worked on at a time: what is needed for them stays in the processor's cache."""
SHORT = 64
"""So few are added one by one."""


def backward_sums(terms: Values, coefficients: Values) -> Values:
    """(n,) y with y[t] = terms[t] + coefficients[t] * y[t + 1].

    Coefficients are from 0 to 1; 0 ends a sequence, so sequences that lie end to end do not touch, and the last
    coefficient must be 0. Nothing is divided, and the time is linear.
    """
    result = terms.copy()
    sum_backward(result, coefficients)
    return result


def sum_backward(terms: Values, coefficients: Values) -> None:
    """`backward_sums` in place of the terms."""
    following = 0.0
    for end in range(len(terms), 0, -CHUNK):
        start = max(0, end - CHUNK)
        terms[end - 1] += coefficients[end - 1] * following
        _sum_chunk(terms[start:end], coefficients[start:end])
        following = terms[start]


def _sum_chunk(terms: Values, coefficients: Values) -> None:
    """The same for so few, with nothing after the last.

    Neighbours are joined in pairs, which gives the same recurrence of half the length: 2 n additions in log2(n) rounds.
    """
    if len(terms) <= SHORT:
        running = 0.0
        sums = []
        for term, coefficient in zip(terms.tolist()[::-1], coefficients.tolist()[::-1], strict=True):
            running = term + coefficient * running
            sums.append(running)
        terms[:] = sums[::-1]
        return
    pairs = len(terms) // 2
    near, reach = terms[::2].copy(), coefficients[::2].copy()
    near[:pairs] += reach[:pairs] * terms[1::2]
    reach[:pairs] *= coefficients[1::2]
    _sum_chunk(near, reach)
    terms[::2] = near
    between = len(near) - 1
    terms[1::2][:between] += coefficients[1::2][:between] * near[1:]


def unless_last(coefficient: float, offsets: Offsets) -> Values:
    """(n,) coefficients for `backward_sums`: the same one, but 0 at the last element of each piece."""
    coefficients = np.full(int(offsets[-1]), coefficient)
    coefficients[offsets[1:][segments.sizes(offsets) > 0] - 1] = 0.0
    return coefficients
