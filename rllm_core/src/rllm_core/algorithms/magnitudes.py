"""Statistics of numbers so large or so small that their squares or sums leave float64.

1e155 squared is infinite, 1e-170 squared is 0. Dividing by a power of two first changes no digit, so the results for
other numbers are the same bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
SAFE = 480
"""Numbers from 2**-480 to 2**480 have squares with all their digits, of which 2**60 can be added up."""


def powers(sizes: ArrayLike) -> NDArray[np.int64]:
    """(n,) exponents of the powers of two to divide by, for numbers of at most these sizes; mostly 0."""
    exponents = np.frexp(sizes)[1].astype(np.int64)
    return np.where(np.abs(exponents) > SAFE, exponents, 0)


def scaled(values: Values, exponents: ArrayLike) -> Values:
    """(n,) values times 2**exponents. Infinite beyond float64, which callers check."""
    if not np.any(exponents):
        return values
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, np.asarray(exponents, np.int32))


def mean(values: Values) -> float:
    """Mean of (n,) finite values, n > 0."""
    power = power_of(values)
    return float(np.ldexp(np.mean(scaled(values, -power)), power))


def deviation(values: Values, *, ddof: int = 0) -> float:
    """Standard deviation of (n,) finite values, n > ddof."""
    power = power_of(values)
    return float(np.ldexp(np.std(scaled(values, -power), ddof=ddof), power))


def power_of(values: Values) -> int:
    """The power of two to divide (n,) values by together."""
    return int(powers([np.abs(values).max(initial=0.0)])[0])
