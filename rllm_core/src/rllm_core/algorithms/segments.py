"""Statistics of the pieces of a flat array that `offsets` delimit, without a Python loop over pieces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    return sums(values, offsets) / np.maximum(sizes(offsets), 1)


def standard_deviations(values: Values, offsets: Offsets) -> Values:
    """(n,) population standard deviation (ddof 0) of each piece, from centred values."""
    centred = values - spread(means(values, offsets), offsets)
    return np.sqrt(means(centred * centred, offsets))


def constant(values: Values, offsets: Offsets) -> NDArray[np.bool_]:
    """(n,) True where all elements of a piece are the very same number. Exact, unlike a small deviation."""
    largest = _reduce(np.maximum, values, offsets, empty=0.0)
    smallest = _reduce(np.minimum, values, offsets, empty=0.0)
    return np.asarray(largest == smallest)


def _reduce(operation: np.ufunc, values: Values, offsets: Offsets, empty: float) -> Values:
    result = np.full(len(offsets) - 1, empty, np.float64)
    filled = np.flatnonzero(sizes(offsets) > 0)
    if filled.size:
        # Empty pieces are left out: reduceat would give them the element at their start.
        result[filled] = operation.reduceat(values, offsets[filled])
    return result
