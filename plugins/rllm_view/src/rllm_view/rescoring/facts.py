"""Figures of groups that an advantage may depend on, computed from rewards and lengths alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rllm_core.algorithms.magnitudes import deviation, mean, power_of, scaled
from rllm_view.rescoring.scores import Floats, ScoredGroup


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupFacts:
    """Columns over groups, (n_group,) float64 each. ``role_…``: over all trajectories of the role in the step."""

    size: Floats
    mean: Floats
    """Of the group's rewards."""
    median: Floats
    lowest: Floats
    highest: Floats
    std: Floats
    """ddof 0"""
    sample_std: Floats
    """ddof 1; NaN in a group of one."""
    length: Floats
    """Mean number of sampled tokens."""
    length_spread: Floats
    """Largest minus smallest number of sampled tokens."""
    length_weighted_mean: Floats
    """Mean reward, each weighted by its trajectory's sampled tokens; NaN where nothing was sampled."""
    role_mean: Floats
    role_std: Floats
    role_centred_std: Floats
    """Of rewards minus their group's mean."""
    role_token_mean: Floats
    """Mean reward over sampled tokens."""
    role_token_std: Floats
    """Standard deviation (ddof 1) of the reward over sampled tokens."""

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> GroupFacts:
        """The facts of some groups."""
        return GroupFacts(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


@dataclass(frozen=True)
class Quantity:
    """Something measured that may stand in the formula of an advantage."""

    name: str
    """As it is written in the formula; empty for the number that changes nothing."""
    values: Callable[[GroupFacts], Floats]


BASELINES = (
    Quantity("", lambda facts: np.zeros_like(facts.mean)),
    Quantity("group mean", lambda facts: facts.mean),
    Quantity("group median", lambda facts: facts.median),
    Quantity("group mean weighted by length", lambda facts: facts.length_weighted_mean),
    Quantity("lowest of group", lambda facts: facts.lowest),
    Quantity("highest of group", lambda facts: facts.highest),
    Quantity("role mean", lambda facts: facts.role_mean),
    Quantity("role mean weighted by length", lambda facts: facts.role_token_mean),
)
"""What may be subtracted from a reward, simplest first."""

DIVISORS = (
    Quantity("", lambda facts: np.ones_like(facts.mean)),
    Quantity("group std", lambda facts: facts.std),
    Quantity("group std (ddof 1)", lambda facts: facts.sample_std),
    Quantity("(1 - 1/n)", lambda facts: 1 - 1 / facts.size),
    Quantity("group mean", lambda facts: facts.mean),
    Quantity("role std", lambda facts: facts.role_std),
    Quantity("role std of (reward - group mean)", lambda facts: facts.role_centred_std),
    Quantity("role std over tokens", lambda facts: facts.role_token_std),
)
"""What the difference may be divided by, simplest first."""

DRIVERS = (
    Quantity("group std", lambda facts: facts.std),
    Quantity("group size", lambda facts: facts.size),
    Quantity("group mean", lambda facts: facts.mean),
    Quantity("spread of response lengths", lambda facts: facts.length_spread),
    Quantity("mean response length", lambda facts: facts.length),
    Quantity("role std in the step", lambda facts: facts.role_std),
)
"""What a ratio of two estimators' advantages may follow."""


def facts_of(groups: Sequence[ScoredGroup]) -> GroupFacts:
    """The facts of all groups of one role, in their order."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        by_step[group.step].append(index)
    steps = {step: _of_step([groups[index] for index in indices]) for step, indices in by_step.items()}
    rows = [(*_of_group(group), *steps[group.step]) for group in groups]
    columns = np.array(rows, np.float64).reshape(len(groups), len(fields(GroupFacts))).T
    return GroupFacts(**{field.name: column for field, column in zip(fields(GroupFacts), columns, strict=True)})


def _of_group(group: ScoredGroup) -> tuple[float, ...]:
    rewards, lengths = group.rewards, group.lengths
    return (
        len(rewards),
        group.reward_mean,
        float(np.median(rewards)),
        rewards.min(),
        rewards.max(),
        group.reward_std,
        deviation(rewards, ddof=1) if len(rewards) > 1 else np.nan,
        lengths.mean(),
        lengths.max() - lengths.min(),
        np.average(rewards, weights=lengths) if lengths.any() else np.nan,
    )


def _of_step(groups: Sequence[ScoredGroup]) -> tuple[float, ...]:
    rewards = np.concatenate([group.rewards for group in groups])
    centred = np.concatenate([group.rewards - group.reward_mean for group in groups])
    lengths = np.concatenate([group.lengths for group in groups])
    tokens = int(lengths.sum())
    token_mean = float(np.average(rewards, weights=lengths)) if tokens else np.nan
    power = power_of(rewards)
    squares = float(lengths @ scaled(rewards - token_mean, -power) ** 2) if tokens > 1 else np.nan
    token_std = float(np.ldexp(np.sqrt(squares / max(tokens - 1, 1)), power))
    return mean(rewards), deviation(rewards), deviation(centred), token_mean, token_std
