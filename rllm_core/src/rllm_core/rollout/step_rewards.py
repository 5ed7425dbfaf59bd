"""Rewards of steps, shaped after an attempt; the formulas are those of rLLM's `Workflow`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def shaped(rewards: Sequence[float], *, gamma: float, bonus_coeff: float) -> list[float]:
    """The bonus first, then, if `gamma` is above 0, the reward to go.

    Args:
        rewards: what the environment gave for each step, in order.
        gamma: discount of later steps, 0 to 1; 0 leaves each step its own reward.
        bonus_coeff: weight of the bonus; 0 means none.
    """
    with_bonus = add_bonus(rewards, bonus_coeff)
    return reward_to_go(with_bonus, gamma) if gamma > 0 else with_bonus


def add_bonus(rewards: Sequence[float], coeff: float) -> list[float]:
    """Each step but the first also gets `coeff` times what it gained on the step before it."""
    if coeff == 0:
        return list(rewards)  # not by arithmetic: 0 times an infinite reward is NaN
    return [*rewards[:1], *(later + coeff * (later - earlier) for earlier, later in pairwise(rewards))]


def reward_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Each step's own reward and, discounted by `gamma` per step, those after it."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]
