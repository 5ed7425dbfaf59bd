"""The upper 2.5 % points of the normal and of Student's distribution."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

Z = 1.959963984540054
"""Of the normal distribution."""
LIKE_NORMAL = 200
"""From here on the expansion is exact to 1e-6."""
POINTS = 40_001


@cache
def student_quantile(freedom: int) -> float:
    """The 97.5 % point of Student's distribution with `freedom` degrees, at least 1."""
    if freedom >= LIKE_NORMAL:  # Cornish and Fisher's expansion: Abramowitz and Stegun 26.7.5
        second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
        return Z + (Z**3 + Z) / (4 * freedom) + second / freedom**2
    # With t = sqrt(freedom) tan(angle) the density is cos(angle) ** (freedom - 1), up to a constant.
    angles = np.linspace(0.0, math.pi / 2, POINTS)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    angle = float(np.interp(0.95 * below[-1], below, angles))
    return math.sqrt(freedom) * math.tan(angle)
