"""Reasons that the lines of two laws give: another slope, another baseline, another divisor of single trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_view.rescoring.facts import DRIVERS, GroupFacts
from rllm_view.rescoring.laws import TOLERANCE, constant_within
from rllm_view.rescoring.reason import FOLLOWS, Reason, Side, correlation, figure
from rllm_view.rescoring.scores import Floats, ScoredGroup


def why(group: ScoredGroup, index: int, facts: GroupFacts, a: Side, b: Side) -> str:
    """In a few words, why `b` differs from `a` on the group that is `index` in the facts."""
    if len(group.rewards) == 1:
        return "a group of one"
    if group.equal_rewards:
        return f"all rewards are {figure(group.rewards[0])}"
    parts = []
    slopes, baselines = (a.law.slopes[index], b.law.slopes[index]), (a.law.baselines[index], b.law.baselines[index])
    if a.law.share != b.law.share or not np.isfinite(slopes).all():
        return f"not both linear in the reward; lengths {_span(group.lengths)}"
    if abs(slopes[0] - slopes[1]) > TOLERANCE * max(map(abs, slopes)):
        parts.append(f"slope {figure(slopes[1])}, not {figure(slopes[0])} (std {figure(facts.std[index])})")
    if np.isfinite(baselines).all() and abs(baselines[0] - baselines[1]) > TOLERANCE * np.ptp(group.rewards):
        parts.append(f"baseline {figure(baselines[1])}, not {figure(baselines[0])}")
    return "; ".join(parts) or "rounding"


def scale(groups: Sequence[ScoredGroup], facts: GroupFacts, a: Side, b: Side) -> Iterator[Reason]:
    """How much more a distance in reward counts under `b`, and which figure of the groups that follows."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = b.law.slopes / a.law.slopes
    chosen = np.flatnonzero(np.isfinite(ratios) & (ratios != 0))
    if a.law.share != b.law.share or not len(chosen):
        return
    values = ratios[chosen]
    if np.ptp(values) <= TOLERANCE * np.abs(values).max():
        if abs(values[0] - 1) > TOLERANCE:
            text = f"{b.label} is {figure(values[0])} times as steep in the reward as {a.label} in every group."
            yield Reason(kind="scale", text=text, groups=len(chosen))
        return
    low, high = groups[int(chosen[values.argmin()])], groups[int(chosen[values.argmax()])]
    text = (
        f"{b.label} weighs a distance in reward {figure(values.min())} to {figure(values.max())} times as much as "
        f"{a.label}: least in group {_about(low)}, most in group {_about(high)}."
    )
    if driver := _driver(values, facts.of(chosen)):
        text += f" The factor follows the {driver}."
    if constant_within(values, np.array([groups[index].step for index in chosen.tolist()])):
        text += " It is the same for all groups of a step."
    yield Reason(kind="scale", text=text, groups=len(chosen))


def baseline(groups: Sequence[ScoredGroup], a: Side, b: Side) -> Iterator[Reason]:
    """Where the rewards whose advantage would be 0 are not the same."""
    distances = np.abs(a.law.baselines - b.law.baselines)
    spreads = np.array([np.ptp(group.rewards) for group in groups])
    with np.errstate(invalid="ignore"):
        chosen = np.flatnonzero(distances > TOLERANCE * spreads)
    if a.law.share != b.law.share or not len(chosen):
        return
    index = int(chosen[distances[chosen].argmax()])
    group = groups[index]
    text = (
        f"The reward that counts as neither good nor bad differs in {len(chosen)} of {_count(a, b)} groups, most in "
        f"group {group.name}: {figure(b.law.baselines[index])} under {b.label}, "
        f"{figure(a.law.baselines[index])} under {a.label}; its rewards average {figure(group.reward_mean)}, "
        f"its lengths are {_span(group.lengths)}."
    )
    yield Reason(kind="baseline", text=text, groups=len(chosen))


def share(groups: Sequence[ScoredGroup], a: Side, b: Side) -> Iterator[Reason]:
    """What single trajectories are divided by under one of the two alone."""
    if a.law.share == b.law.share:
        return
    divided = [f"by its {side.law.share} under {side.label}" for side in (a, b) if side.law.share]
    yield Reason(
        kind="share", text=f"Each trajectory's advantage is divided {' and '.join(divided)}.", groups=len(groups)
    )


def bent(groups: Sequence[ScoredGroup], side: Side) -> Iterator[Reason]:
    """Groups of differing rewards on which no line fits, and what the estimator leaves at 0 there."""
    slopes = side.law.slopes
    chosen = [
        group for group, slope in zip(groups, slopes, strict=True) if not (group.equal_rewards or np.isfinite(slope))
    ]
    if not chosen:
        return
    zero = np.concatenate([group.advantages[side.setup] == 0 for group in chosen])
    text = (
        f"Under {side.label} the advantage is not linear in the reward in {len(chosen)} of {side.law.of} groups whose "
        f"rewards differ, such as {_about(chosen[0])}; there it is 0 for {int(zero.sum())} of {len(zero)} trajectories."
    )
    yield Reason(kind="bent", text=text, groups=len(chosen))


def _driver(ratios: Floats, facts: GroupFacts) -> str:
    """The figure that the ratios follow best, in logarithms; empty where they follow none."""
    scores = []
    for driver in DRIVERS:
        values = driver.values(facts)
        usable = np.isfinite(values) & (values > 0)
        followed = abs(correlation(np.log(np.abs(ratios[usable])), np.log(values[usable]))) if usable.sum() > 2 else 0.0
        scores.append((round(followed, 3), driver.name))
    best = max(scores, key=lambda entry: entry[0])
    return best[1] if best[0] >= FOLLOWS else ""


def _count(a: Side, b: Side) -> int:
    return int((np.isfinite(a.law.baselines) & np.isfinite(b.law.baselines)).sum())


def _about(group: ScoredGroup) -> str:
    return f"{group.name} (n {len(group.rewards)}, std {figure(group.reward_std)})"


def _span(lengths: NDArray[np.int64]) -> str:
    return f"{lengths.min()} to {lengths.max()}" if np.ptp(lengths) else f"all {lengths[0]}"
