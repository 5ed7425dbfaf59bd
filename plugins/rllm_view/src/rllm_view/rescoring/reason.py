"""A reason why two setups differ, and the two sides of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.estimator import Level, Scope
from rllm_view.rescoring.laws import Law
from rllm_view.rescoring.scores import Floats

FOLLOWS = 0.9
"""Least correlation at which one figure is said to follow another."""

Kind = Literal[
    "none",
    "scale",
    "baseline",
    "share",
    "bent",
    "singletons",
    "equal_rewards",
    "silenced",
    "beyond_reward",
    "scope",
    "level",
]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One thing in which two setups differ."""

    kind: Kind
    text: str
    groups: int
    """How many groups it concerns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One of the two setups, for one role."""

    label: str
    """The role's estimator, with its options."""
    setup: int
    """Its index in the scores."""
    law: Law
    level: Level
    scope: Scope


def correlation(one: Floats, other: Floats | NDArray[np.int64]) -> float:
    """Pearson's correlation; 0 where one of the two does not vary."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def figure(value: float) -> str:
    """A number for people; float32 noise is rounded away first, which would else tip 0.1875 to either side."""
    return f"{round(value, 6):.3g}"
