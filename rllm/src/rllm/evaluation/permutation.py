"""Sign-flip tests: were two models alike, every difference of a task would as well have the other sign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 100_000
TOGETHER = 2_000_000
"""Signs that are drawn at a time: 16 MB."""
SLACK = 1e-9
"""Tolerance relative to the sum of the magnitudes, because sums that differ only by rounding must be ties."""


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of numbers, one per task, over `DRAWS` random signs with a fixed seed.

    The observed signs count as one more draw, so the value is never 0 (Phipson and Smyth 2010).
    """
    values = np.asarray([each for each in differences if each], np.float64)
    seen = abs(float(values.sum())) - SLACK * float(np.abs(values).sum())
    generator = np.random.default_rng(0)
    at_a_time = max(1, TOGETHER // max(1, len(values)))
    beyond, left = 0, DRAWS
    while left:
        draws = min(at_a_time, left)
        beyond += int((np.abs(_signs(generator, draws, len(values)) @ values) >= seen).sum())
        left -= draws
    return (beyond + 1) / (DRAWS + 1)


def _signs(generator: np.random.Generator, draws: int, tasks: int) -> NDArray[np.float64]:
    return generator.integers(0, 2, (draws, tasks)).astype(np.float64) * 2 - 1
