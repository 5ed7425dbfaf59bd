"""Shaping of step rewards after a rollout. The formulas come from rLLM's `Workflow`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def shaped(rewards: Sequence[float], *, gamma: float, bonus_coeff: float) -> list[float]:
    """Return the rewards with the bonus and then, if `gamma` is above 0, as rewards to go.

    Args:
        rewards: the environment's reward for each step, in order.
        gamma: discount of later steps, from 0 to 1. With 0, each step keeps its own reward.
        bonus_coeff: weight of the bonus. 0 means no bonus.
    """
    with_bonus = add_bonus(rewards, bonus_coeff)
    return reward_to_go(with_bonus, gamma) if gamma > 0 else with_bonus


def add_bonus(rewards: Sequence[float], coeff: float) -> list[float]:
    """Add to each step except the first `coeff` times the difference to the previous step's reward."""
    if coeff == 0:
        return list(rewards)  # no arithmetic, because 0 times an infinite reward is NaN
    return [*rewards[:1], *(later + coeff * (later - earlier) for earlier, later in pairwise(rewards))]


def reward_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return for each step its own reward plus later rewards, discounted by `gamma` per step."""
    returns: list[float] = []
    following = 0.0
    for reward in reversed(rewards):
        following = reward + gamma * following
        returns.append(following)
    return returns[::-1]
