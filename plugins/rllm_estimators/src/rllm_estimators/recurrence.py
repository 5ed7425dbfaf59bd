"""Backward recurrences along many sequences at once, in linear time and without a loop over elements."""

from __future__ import annotations

import numpy as np

from rllm_core.algorithms.segments import Values


def backward_sums(terms: Values, coefficients: Values) -> Values:
    """(n,) y with y[t] = terms[t] + coefficients[t] * y[t + 1].

    Coefficients are from 0 to 1; 0 ends a sequence, so sequences that lie end to end do not touch, and the last
    coefficient must be 0. Neighbours are joined in pairs, which gives the same recurrence of half the length:
    2 n additions in log2(n) rounds, nothing is divided, and equal inputs give equal results wherever they lie.
    """
    if not coefficients.any():
        return terms.copy()
    if len(terms) % 2:
        terms, coefficients = np.append(terms, 0.0), np.append(coefficients, 0.0)
        return backward_sums(terms, coefficients)[:-1]
    near, far = slice(0, None, 2), slice(1, None, 2)
    result = np.empty_like(terms)
    result[near] = backward_sums(terms[near] + coefficients[near] * terms[far], coefficients[near] * coefficients[far])
    following = np.append(result[near][1:], 0.0)
    result[far] = terms[far] + coefficients[far] * following
    return result
