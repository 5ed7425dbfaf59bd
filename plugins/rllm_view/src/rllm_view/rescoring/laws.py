"""Laws: what an estimator did to rewards, found out from the numbers alone, so for anybody's estimator.

In every group whose rewards differ a straight line is laid through (reward, advantage),
``advantage = slope * (reward - baseline)``; if there is none, through the advantages times the turns, or the lengths,
of their trajectories. Then slope and baseline are compared with what was measured of the groups.
A law says what fits these groups; another estimator may give the same numbers on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.magnitudes import mean, power_of, scaled
from rllm_view.rescoring.facts import BASELINES, DIVISORS, GroupFacts, Quantity
from rllm_view.rescoring.scores import Floats, ScoredGroup

TOLERANCE = 1e-3
"""Relative. Estimators add up to 1e-4 to what they divide by."""
ROUNDING = 1e-6
"""Relative; advantages are float32."""
MOST = 0.95
"""Share of groups that a quantity must fit."""


SHARES: tuple[tuple[str, Callable[[ScoredGroup], NDArray[Any]]], ...] = (
    ("", lambda group: np.ones(len(group.rewards))),
    ("turns", lambda group: group.turns),
    ("response length", lambda group: group.lengths),
)
"""What every trajectory's advantage may be divided by on its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Law:
    """How the advantages of one role under one setup depend on the rewards."""

    formula: str
    """``(reward - group mean) / group std``."""
    fits: int
    """Groups of differing rewards whose advantages lie on a straight line over the rewards."""
    of: int
    """Groups of differing rewards."""
    share: str
    """What each trajectory's advantage is divided by besides; empty: nothing."""
    slopes: Floats
    """(n_group,) NaN where there is no straight line."""
    baselines: Floats
    """(n_group,) the reward whose advantage would be 0; NaN where there is no straight line, or a level one."""


def law_of(groups: Sequence[ScoredGroup], facts: GroupFacts, setup: int) -> Law:
    """The law of a role's groups under the setup of that index."""
    differing = np.array([not group.equal_rewards for group in groups], np.bool_)
    share, lines = _lines(groups, setup, differing)
    slopes, baselines = lines[:, 0], lines[:, 1]
    straight = differing & np.isfinite(slopes)
    fits, of = int(straight.sum()), int(differing.sum())
    sloping = straight & np.isfinite(baselines)
    if fits < MOST * of:
        formula = "not linear in the reward"
    elif not of:
        formula = "no group has differing rewards"
    elif not sloping.any():
        formula = "the same for all trajectories of a group"
    else:
        steps = np.array([group.step for group in groups])
        formula = _formula(slopes[sloping], baselines[sloping], facts.of(sloping), steps[sloping])
        formula = f"({formula}) / {share}" if share else formula
    return Law(formula=formula, fits=fits, of=of, share=share, slopes=slopes, baselines=baselines)


def constant_within(values: Floats, steps: NDArray[np.int64]) -> bool:
    """Whether groups of one step have the same value; False where no step has two groups."""
    parts = [values[steps == step] for step in np.unique(steps)]
    alike = [bool(np.ptp(part) <= TOLERANCE * np.abs(part).max()) for part in parts if len(part) > 1]
    return bool(alike) and all(alike)


def _lines(groups: Sequence[ScoredGroup], setup: int, differing: NDArray[np.bool_]) -> tuple[str, Floats]:
    """The simplest of `SHARES` that gives lines, and (n_group, 2) slopes and baselines."""
    found = []
    for name, divisors in SHARES:
        lines = np.array([_line(group, group.advantages[setup] * divisors(group)) for group in groups]).reshape(-1, 2)
        found.append((name, lines))
        if np.isfinite(lines[differing, 0]).sum() >= MOST * differing.sum():
            return name, lines
    return found[0]


def _line(group: ScoredGroup, advantages: Floats) -> tuple[float, float]:
    """Slope and baseline of (n,) advantages over the group's rewards; NaN where they lie on no line."""
    usable = np.isfinite(advantages)
    rewards, advantages = group.rewards[usable], advantages[usable]
    if len(rewards) < 2 or rewards.max() == rewards.min():
        return np.nan, np.nan
    middle = mean(rewards)
    centred = rewards - middle
    power = power_of(centred)
    small = scaled(centred, -power)
    slope = float(np.ldexp(small @ (advantages - advantages.mean()) / (small @ small), -power))
    residuals = advantages - advantages.mean() - slope * centred
    size = float(np.abs(advantages).max())
    if np.abs(residuals).max() > TOLERANCE * size:
        return np.nan, np.nan
    # Where all advantages are equal, rounding leaves a slope that means nothing.
    spread = float(rewards.max() - rewards.min())
    if abs(slope) * spread <= ROUNDING * size:
        return 0.0, np.nan
    baseline = float(middle - advantages.mean() / slope)
    return slope, 0.0 if abs(baseline) <= ROUNDING * spread else baseline


def _formula(slopes: Floats, baselines: Floats, facts: GroupFacts, steps: NDArray[np.int64]) -> str:
    spread = facts.highest - facts.lowest
    baseline = next(
        (entry for entry in BASELINES if _most(np.abs(baselines - entry.values(facts)) <= TOLERANCE * spread)), None
    )
    subtracted = f"[{_range(baselines)}, group by group]" if baseline is None else baseline.name
    distance = f"reward - {subtracted}" if subtracted else "reward"
    divisor, factor = _divisor(slopes, facts)
    if divisor is not None and not divisor.name and abs(factor - 1) <= TOLERANCE:
        return distance
    distance = f"({distance})" if subtracted else distance
    if divisor is None:
        whose = "step by step" if constant_within(slopes, steps) else "group by group"
        return f"[{_range(slopes)}, {whose}] * {distance}"
    scaled = distance if abs(factor - 1) <= TOLERANCE else f"{factor:.3g} * {distance}"
    return f"{scaled} / {divisor.name}" if divisor.name else scaled


def _divisor(slopes: Floats, facts: GroupFacts) -> tuple[Quantity | None, float]:
    """What the distance is divided by, and a factor that is the same for all groups; one without a factor first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = [slopes * entry.values(facts) for entry in DIVISORS]
    for entry, values in zip(DIVISORS, factors, strict=True):
        if _most(np.abs(values - 1) <= TOLERANCE):
            return entry, 1.0
    for entry, values in zip(DIVISORS, factors, strict=True):
        middle = float(np.median(values))
        if _most(np.abs(values - middle) <= TOLERANCE * abs(middle)):
            return entry, middle
    return None, np.nan


def _most(fitting: NDArray[np.bool_]) -> bool:
    return bool(fitting.mean() >= MOST)


def _range(values: Floats) -> str:
    return f"{values.min():.3g} to {values.max():.3g}"
