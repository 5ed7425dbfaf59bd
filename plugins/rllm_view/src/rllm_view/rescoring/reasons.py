"""The difference explained: why two setups differ on these groups, from what was measured of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rllm_core.contracts.estimator import Scope
from rllm_view.rescoring.facts import GroupFacts
from rllm_view.rescoring.laws import TOLERANCE
from rllm_view.rescoring.line_reasons import baseline, bent, scale, share
from rllm_view.rescoring.reason import FOLLOWS, Kind, Reason, Side, correlation, figure
from rllm_view.rescoring.scores import Floats, ScoredGroup

WIDTH: tuple[Scope, ...] = ("trajectory", "group", "role", "batch")


def reasons(groups: Sequence[ScoredGroup], facts: GroupFacts, a: Side, b: Side) -> list[Reason]:
    """Why `b` differs from the reference `a`; a single reason of kind ``none`` where it does not."""
    if not any(_differ(group, a, b) for group in groups):
        same = f"{a.label} and {b.label} give every trajectory the same."
        return [Reason(kind="none", text=same if a.label != b.label else f"Both are {a.label}.", groups=0)]
    return [
        *scale(groups, facts, a, b),
        *baseline(groups, a, b),
        *share(groups, a, b),
        *bent(groups, a),
        *bent(groups, b),
        *_without_spread(groups, a, b),
        *_silenced(groups, a, b),
        *_silenced(groups, b, a),
        *_beyond_reward(groups, a),
        *_beyond_reward(groups, b),
        *_scope(groups, a, b),
        *_level(groups, a),
        *_level(groups, b),
    ]


def _without_spread(groups: Sequence[ScoredGroup], a: Side, b: Side) -> Iterator[Reason]:
    """Groups that hold nothing to compare: of one trajectory, or of equal rewards."""
    kinds: tuple[tuple[Kind, str, list[ScoredGroup]], ...] = (
        ("singletons", "groups of one trajectory", [group for group in groups if len(group.rewards) == 1]),
        (
            "equal_rewards",
            "groups whose rewards are all equal",
            [group for group in groups if len(group.rewards) > 1 and group.equal_rewards],
        ),
    )
    for kind, what, chosen in kinds:
        differing = [group for group in chosen if _differ(group, a, b)]
        if differing:
            given = "; ".join(f"{side.label} gives {_given(chosen, side.setup)}" for side in (a, b))
            yield Reason(
                kind=kind, text=f"{len(differing)} of {len(chosen)} {what} differ: {given}.", groups=len(differing)
            )


def _silenced(groups: Sequence[ScoredGroup], silent: Side, other: Side) -> Iterator[Reason]:
    """Groups of differing rewards that hold no signal under one of the two alone."""
    concerned = [
        group
        for group in groups
        if not group.equal_rewards and not group.signal[silent.setup] and group.signal[other.setup]
    ]
    if concerned:
        text = f"{silent.label} gives 0 to {len(concerned)} of {len(groups)} groups though their rewards differ"
        example = f", {other.label} does not: {concerned[0].name}, rewards up to {figure(concerned[0].rewards.max())}."
        yield Reason(kind="silenced", text=text + example, groups=len(concerned))


def _beyond_reward(groups: Sequence[ScoredGroup], side: Side) -> Iterator[Reason]:
    """Equal rewards of one group that got different advantages, and whether these follow the lengths."""
    if side.law.share:
        return
    advantages: list[Floats] = []
    lengths: list[Floats] = []
    concerned = 0
    for group in groups:
        values = group.advantages[side.setup]
        before = len(advantages)
        for reward in np.unique(group.rewards):
            same = (group.rewards == reward) & np.isfinite(values)
            if same.sum() > 1 and np.ptp(values[same]) > TOLERANCE * np.abs(values[same]).max():
                advantages.append(values[same] - values[same].mean())
                lengths.append(group.lengths[same] - group.lengths[same].mean())
        concerned += len(advantages) > before
    if not concerned:
        return
    follows = correlation(np.concatenate(advantages), np.concatenate(lengths))
    text = (
        f"Under {side.label} equal rewards of one group get different advantages in {concerned} of {len(groups)} groups"
    )
    text += f"; they follow the response length (correlation {follows:+.2f})." if abs(follows) >= FOLLOWS else "."
    yield Reason(kind="beyond_reward", text=text, groups=concerned)


def _scope(groups: Sequence[ScoredGroup], a: Side, b: Side) -> Iterator[Reason]:
    if a.scope == b.scope:
        return
    wide, narrow = sorted((a, b), key=lambda side: -WIDTH.index(side.scope))
    on = {
        "trajectory": "its own reward alone",
        "group": "its own group alone",
        "role": "all groups of its role in the step",
        "batch": "all groups of the step",
    }
    text = (
        f"By their declared scopes an advantage depends on {on[wide.scope]} under {wide.label}, "
        f"on {on[narrow.scope]} under {narrow.label}."
    )
    if wide.scope in ("role", "batch"):
        steps = len({group.step for group in groups})
        text += f" The same group beside others would get another; there are {len(groups) / steps:.3g} per step."
    yield Reason(kind="scope", text=text, groups=len(groups))


def _level(groups: Sequence[ScoredGroup], side: Side) -> Iterator[Reason]:
    if side.level == "trajectory":
        return
    deviations = np.concatenate([group.deviations[side.setup] for group in groups])
    means = np.concatenate([group.advantages[side.setup] for group in groups])
    varied = int((deviations > TOLERANCE * np.abs(means)).sum())
    text = (
        f"{side.label} gives one advantage per {side.level}; they differ within {varied} of {len(means)} trajectories"
    )
    text += f", by a standard deviation of {figure(float(np.nanmean(deviations)))} on average." if varied else "."
    yield Reason(kind="level", text=text, groups=len(groups))


def _differ(group: ScoredGroup, a: Side, b: Side) -> bool:
    one, other = group.advantages[a.setup], group.advantages[b.setup]
    same_means = np.allclose(one, other, rtol=TOLERANCE, atol=1e-9, equal_nan=True)
    same_within = np.allclose(
        group.deviations[a.setup], group.deviations[b.setup], rtol=TOLERANCE, atol=1e-6, equal_nan=True
    )
    return not (same_means and same_within)


def _given(groups: Sequence[ScoredGroup], setup: int) -> str:
    """What groups without spread get, in words."""
    values = np.concatenate([group.advantages[setup] for group in groups])
    rewards = np.concatenate([group.rewards for group in groups])
    rewards, values = rewards[np.isfinite(values)], values[np.isfinite(values)]
    if not values.any():
        return "0"
    if np.allclose(values, rewards, rtol=TOLERANCE):
        return "the reward itself"
    return f"{figure(values.min())} to {figure(values.max())}" if np.ptp(values) else figure(values[0])
