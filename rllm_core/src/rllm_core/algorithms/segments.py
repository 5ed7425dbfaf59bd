"""Statistics of the pieces of a flat array that `offsets` delimit, without a Python loop over pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.magnitudes import powers, scaled

Offsets = NDArray[np.int64]
"""(n + 1,) non-decreasing; piece ``i`` is ``offsets[i]:offsets[i + 1]``."""
Values = NDArray[np.float64]


def sizes(offsets: Offsets) -> NDArray[np.int64]:
    """(n,) number of elements of each piece."""
    return np.diff(offsets)


def spread(per_piece: Values, offsets: Offsets) -> Values:
    """(m,) each piece's value repeated for all its elements."""
    return np.repeat(per_piece, sizes(offsets))


def sums(values: Values, offsets: Offsets) -> Values:
    """(n,) sum of each piece; 0 for an empty piece."""
    return _reduce(np.add, values, offsets, empty=0.0)


def means(values: Values, offsets: Offsets) -> Values:
    """(n,) mean of each piece; 0 for an empty piece."""
    values, exponents = in_range(values, offsets)
    return scaled(sums(values, offsets) / np.maximum(sizes(offsets), 1), exponents)


def in_range(values: Values, offsets: Offsets) -> tuple[Values, NDArray[np.int64]]:
    """(m,) values whose squares and sums stay in float64, and (n,) each piece's power of two that was divided by.

    The values themselves, and zeros, but for pieces of extreme size.
    """
    exponents = powers(maxima(np.abs(values), offsets))
    return scaled(values, -np.repeat(exponents, sizes(offsets))) if exponents.any() else values, exponents


def running_sums(values: Values, offsets: Offsets) -> Values:
    """(m,) sum of each element and those before it in its piece."""
    filled = sizes(offsets) > 0
    terms = values.copy()
    # One sum over everything that each piece but the first begins by going back to 0.
    terms[offsets[:-1][filled][1:]] -= sums(values, offsets)[filled][:-1]
    return np.cumsum(terms)


def maxima(values: Values, offsets: Offsets) -> Values:
    """(n,) largest element of each piece; 0 for an empty piece."""
    return _reduce(np.maximum, values, offsets, empty=0.0)


def constant(values: Values, offsets: Offsets) -> NDArray[np.bool_]:
    """(n,) True where all elements of a piece are the very same number. Exact, unlike a small deviation."""
    smallest = _reduce(np.minimum, values, offsets, empty=0.0)
    return np.asarray(maxima(values, offsets) == smallest)


def in_constant(values: Values, offsets: Offsets) -> NDArray[np.bool_]:
    """(m,) which elements belong to a piece whose elements are all the very same number."""
    return np.repeat(constant(values, offsets), sizes(offsets))


def alone(offsets: Offsets) -> NDArray[np.bool_]:
    """(m,) which elements are the only ones of their piece."""
    return np.repeat(sizes(offsets) == 1, sizes(offsets))


def centred(values: Values, offsets: Offsets) -> Values:
    """(m,) element - mean of its piece, exactly 0 in a piece of equal elements, so also in a piece of one.

    Infinite where the distance is beyond float64.
    """
    with np.errstate(over="ignore"):
        result = values - spread(means(values, offsets), offsets)
    # The mean of equal numbers is not always that number in floating point, so equality is tested on the numbers.
    result[in_constant(values, offsets)] = 0.0
    return result


def standard_deviations(values: Values, offsets: Offsets, *, ddof: int = 0) -> Values:
    """(n,) square roots of the sum of squares about the mean / (size - ddof).

    Exactly 0 for a piece of equal elements; 0 for one of fewer than two and for an empty one.
    """
    distances, exponents = in_range(centred(values, offsets), offsets)
    deviations = np.sqrt(sums(distances * distances, offsets) / np.maximum(sizes(offsets) - ddof, 1))
    return scaled(deviations, exponents)


def _reduce(operation: np.ufunc, values: Values, offsets: Offsets, empty: float) -> Values:
    result = np.full(len(offsets) - 1, empty, np.float64)
    filled = np.flatnonzero(sizes(offsets) > 0)
    if filled.size:
        # Empty pieces are left out: reduceat would give them the element at their start.
        result[filled] = operation.reduceat(values, offsets[filled])
    return result
