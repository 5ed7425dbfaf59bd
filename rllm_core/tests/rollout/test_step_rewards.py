"""Rewards of steps, shaped after a rollout."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from rllm_core.rollout.workflows import add_bonus, reward_to_go, shape_rewards

# Quarters and eighths: what is added up comes out exactly, whatever the order.
rewards = st.lists(st.integers(-800, 800).map(lambda eighths: eighths / 8), max_size=12)
discounts = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
coefficients = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])


def test_the_bonus_comes_before_the_discount() -> None:
    assert shape_rewards([0.0, 1.0], gamma=0.5, bonus_coeff=1.0) == [0.5 * (1.0 + 1.0), 1.0 + 1.0]


@given(rewards, coefficients)
def test_bonus_is_the_gain_over_previous_step(given: list[float], coeff: float) -> None:
    gains = [0.0, *(later - earlier for earlier, later in pairwise(given))]
    assert add_bonus(given, coeff) == [reward + coeff * gain for reward, gain in zip(given, gains, strict=False)]


@given(rewards, discounts)
def test_reward_to_go_adds_the_discounted_next(given: list[float], gamma: float) -> None:
    returns = reward_to_go(given, gamma)
    following = [*returns[1:], 0.0]
    assert returns == [reward + gamma * later for reward, later in zip(given, following, strict=False)]


@given(rewards, discounts, coefficients)
def test_shaping_is_both_and_leaves_its_inputs_unchanged(given: list[float], gamma: float, coeff: float) -> None:
    before = given.copy()
    assert shape_rewards(given, gamma=gamma, bonus_coeff=coeff) == reward_to_go(add_bonus(given, coeff), gamma)
    assert given == before
    assert shape_rewards(given, gamma=0.0, bonus_coeff=0.0) == given


def test_infinite_reward_stays_infinite_without_bonus() -> None:
    assert add_bonus([float("inf"), 1.0], 0.0) == [float("inf"), 1.0]
