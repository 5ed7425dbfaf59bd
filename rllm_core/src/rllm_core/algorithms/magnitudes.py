"""Statistics of numbers whose squares or sums would overflow or underflow float64.

1e155 squared is infinite, and 1e-170 squared is 0. The values are first divided by a power of two, which changes no
digit. Results for other numbers are identical bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
SAFE = 480
"""Numbers from 2**-480 to 2**480 have exact-precision squares, and 2**60 of these can be summed without overflow."""


def powers(sizes: ArrayLike) -> NDArray[np.int64]:
    """Return exponents of the powers of two to divide by, (n,), for numbers of at most these sizes. They are mostly
    0."""
    exponents = np.frexp(sizes)[1].astype(np.int64)
    return np.where(np.abs(exponents) > SAFE, exponents, 0)


def scaled(values: Values, exponents: ArrayLike) -> Values:
    """Return values times 2**exponents, (n,). They are infinite beyond float64. Callers check that."""
    if not np.any(exponents):
        return values
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, np.asarray(exponents, np.int32))


def mean(values: Values) -> float:
    """Return the mean of (n,) finite values, n > 0."""
    power = find_power(values)
    return float(np.ldexp(np.mean(scaled(values, -power)), power))


def deviation(values: Values, *, ddof: int = 0) -> float:
    """Return the standard deviation of (n,) finite values, n > ddof."""
    power = find_power(values)
    return float(np.ldexp(np.std(scaled(values, -power), ddof=ddof), power))


def find_power(values: Values) -> int:
    """Return the power of two by which to divide all (n,) values."""
    return int(powers([np.abs(values).max(initial=0.0)])[0])
