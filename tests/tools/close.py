"""Comparison of float32 results whose last bits differ between processors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def assert_close(found: Any, expected: Any, terms: Iterable[Any], relative: float = 1e-6) -> None:
    """Check a float32 sum within `relative` of the sum of its terms' magnitudes.

    The order of a sum in float32 depends on the processor's kernels, and each order has different last bits. The error
    grows with the magnitudes of the terms, also if they cancel. So an absolute bound, or a bound relative to the sum,
    that fits one processor fails on another.

    Args:
        found: a number or an array.
        expected: what `found` is compared with, entry by entry.
        terms: the numbers or arrays that were added. The largest magnitude in each is its magnitude.
        relative: the error per magnitude. The spacing of float32 is 1.2e-7.
    """
    bound = relative * sum(float(np.abs(np.asarray(term)).max()) for term in terms)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=bound)
