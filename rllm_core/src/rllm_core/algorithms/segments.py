"""Statistics of the pieces of a flat array, delimited by `offsets`, without a Python loop over pieces.

Squares or sums of some numbers overflow or underflow float64: 1e155 squared is infinite, and 1e-170 squared is 0. Such
values are first divided by a power of two, which changes no digit. Results for other numbers are identical bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Offsets = NDArray[np.int64]
"""(n + 1,) non-decreasing; piece ``i`` is ``offsets[i]:offsets[i + 1]``."""
Values = NDArray[np.float64]
SAFE = 480
"""Numbers from 2**-480 to 2**480 have exact-precision squares, and 2**60 of these can be summed without overflow."""


def sizes(offsets: Offsets) -> NDArray[np.int64]:
    """Return the number of elements of each piece, (n,)."""
    return np.diff(offsets)


def spread(per_piece: Values, offsets: Offsets) -> Values:
    """Return each piece's value repeated for all its elements, (m,)."""
    return np.repeat(per_piece, sizes(offsets))


def sums(values: Values, offsets: Offsets) -> Values:
    """Return the sum of each piece, (n,), 0 for an empty piece."""
    return _reduce(np.add, values, offsets, empty=0.0)


def means(values: Values, offsets: Offsets) -> Values:
    """Return the mean of each piece, (n,), 0 for an empty piece."""
    values, exponents = in_range(values, offsets)
    return scale(sums(values, offsets) / np.maximum(sizes(offsets), 1), exponents)


def in_range(values: Values, offsets: Offsets) -> tuple[Values, NDArray[np.int64]]:
    """Return values, (m,), whose squares and sums do not overflow float64, and each piece's divisor as a power of two,
    (n,).

    Only pieces with extremely large or small values are divided. Otherwise the values are returned unchanged, with
    zeros.
    """
    exponents = powers(maxima(np.abs(values), offsets))
    return scale(values, -np.repeat(exponents, sizes(offsets))) if exponents.any() else values, exponents


def running_sums(values: Values, offsets: Offsets) -> Values:
    """Return the sum of each element and the elements before it in its piece, (m,)."""
    filled = sizes(offsets) > 0
    terms = values.copy()
    # A single cumulative sum over the array. At the start of each piece except the first, the previous sum is
    # subtracted.
    terms[offsets[:-1][filled][1:]] -= sums(values, offsets)[filled][:-1]
    return np.cumsum(terms)


def maxima(values: Values, offsets: Offsets) -> Values:
    """Return the largest element of each piece, (n,), 0 for an empty piece."""
    return _reduce(np.maximum, values, offsets, empty=0.0)


def constant(values: Values, offsets: Offsets) -> NDArray[np.bool_]:
    """Return an array, (n,), that is True if all elements of a piece are equal. It is exact, unlike a small
    deviation."""
    smallest = _reduce(np.minimum, values, offsets, empty=0.0)
    return np.asarray(maxima(values, offsets) == smallest)


def in_constant(values: Values, offsets: Offsets) -> NDArray[np.bool_]:
    """Return an array, (m,), that is True for elements of a piece whose elements are all equal."""
    return np.repeat(constant(values, offsets), sizes(offsets))


def alone(offsets: Offsets) -> NDArray[np.bool_]:
    """Return an array, (m,), that is True for elements that are the only element of their piece."""
    return np.repeat(sizes(offsets) == 1, sizes(offsets))


def center(values: Values, offsets: Offsets) -> Values:
    """Return element - mean of its piece, (m,). It is exactly 0 in a piece of equal elements, including a piece of one.

    The result is infinite if the distance exceeds float64.
    """
    with np.errstate(over="ignore"):
        result = values - spread(means(values, offsets), offsets)
    # The mean of equal numbers may differ from the number in floating point, so the numbers themselves are compared.
    result[in_constant(values, offsets)] = 0.0
    return result


def standard_deviations(values: Values, offsets: Offsets, *, ddof: int = 0) -> Values:
    """Return the standard deviation of each piece, (n,): the root of the sum of squares about the mean / (size - ddof).

    It is exactly 0 for a piece of equal elements, and 0 for a piece with fewer than two elements.
    """
    distances, exponents = in_range(center(values, offsets), offsets)
    deviations = np.sqrt(sums(distances * distances, offsets) / np.maximum(sizes(offsets) - ddof, 1))
    return scale(deviations, exponents)


def _reduce(operation: np.ufunc, values: Values, offsets: Offsets, empty: float) -> Values:
    result = np.full(len(offsets) - 1, empty, np.float64)
    filled = np.flatnonzero(sizes(offsets) > 0)
    if filled.size:
        # Empty pieces are skipped, because reduceat would return the element at their start.
        result[filled] = operation.reduceat(values, offsets[filled])
    return result


def powers(sizes: ArrayLike) -> NDArray[np.int64]:
    """Return exponents of the powers of two to divide by, (n,), for numbers of at most these sizes. They are mostly
    0."""
    exponents = np.frexp(sizes)[1].astype(np.int64)
    return np.where(np.abs(exponents) > SAFE, exponents, 0)


def scale(values: Values, exponents: ArrayLike) -> Values:
    """Return values times 2**exponents, (n,). They are infinite beyond float64. Callers check that."""
    if not np.any(exponents):
        return values
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, np.asarray(exponents, np.int32))


def mean(values: Values) -> float:
    """Return the mean of (n,) finite values, n > 0."""
    power = find_power(values)
    return float(np.ldexp(np.mean(scale(values, -power)), power))


def deviation(values: Values, *, ddof: int = 0) -> float:
    """Return the standard deviation of (n,) finite values, n > ddof."""
    power = find_power(values)
    return float(np.ldexp(np.std(scale(values, -power), ddof=ddof), power))


def find_power(values: Values) -> int:
    """Return the power of two by which to divide all (n,) values."""
    return int(powers([np.abs(values).max(initial=0.0)])[0])
