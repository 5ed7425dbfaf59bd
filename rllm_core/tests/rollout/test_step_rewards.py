"""Rewards of steps, shaped after a rollout."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from rllm_core.rollout.step_rewards import add_bonus, reward_to_go, shaped

# Quarters and eighths: what is added up comes out exactly, whatever the order.
rewards = st.lists(st.integers(-800, 800).map(lambda eighths: eighths / 8), max_size=12)
discounts = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
coefficients = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])


def test_a_step_s_bonus_is_what_it_gained_on_the_step_before() -> None:
    assert add_bonus([1.0, 3.0, 2.0], 0.5) == [1.0, 3.0 + 0.5 * 2.0, 2.0 - 0.5 * 1.0]


def test_reward_to_go_includes_all_later_steps() -> None:
    assert reward_to_go([1.0, 0.0, 4.0], 0.5) == [1.0 + 0.25 * 4.0, 0.5 * 4.0, 4.0]


def test_the_bonus_comes_before_the_discount() -> None:
    assert shaped([0.0, 1.0], gamma=0.5, bonus_coeff=1.0) == [0.5 * (1.0 + 1.0), 1.0 + 1.0]


@given(rewards)
def test_with_no_options_the_rewards_are_what_they_were(given: list[float]) -> None:
    assert shaped(given, gamma=0.0, bonus_coeff=0.0) == given


@given(rewards, discounts, coefficients)
def test_one_reward_per_step_and_inputs_unchanged(given: list[float], gamma: float, coeff: float) -> None:
    before = given.copy()
    assert len(shaped(given, gamma=gamma, bonus_coeff=coeff)) == len(given)
    assert given == before


@given(rewards, coefficients)
def test_the_bonuses_add_up_to_the_gain_from_first_to_last(given: list[float], coeff: float) -> None:
    gained = coeff * (given[-1] - given[0]) if given else 0.0
    assert sum(add_bonus(given, coeff)) == sum(given) + gained


@given(rewards, coefficients)
def test_the_first_step_has_no_bonus_and_equal_rewards_bring_none(given: list[float], coeff: float) -> None:
    assert add_bonus(given, coeff)[:1] == given[:1]
    assert add_bonus(given[:1] * 5, coeff) == given[:1] * 5


@given(rewards, discounts)
def test_a_reward_to_go_is_the_step_s_own_and_the_discounted_next(given: list[float], gamma: float) -> None:
    returns = reward_to_go(given, gamma)
    following = [*returns[1:], 0.0]
    assert returns == [reward + gamma * later for reward, later in zip(given, following, strict=False)]


@given(rewards)
def test_without_discount_the_first_step_has_the_whole_reward(given: list[float]) -> None:
    assert reward_to_go(given, 1.0)[:1] == ([sum(given)] if given else [])


@given(rewards, discounts, coefficients)
def test_the_last_step_has_nothing_to_wait_for(given: list[float], gamma: float, coeff: float) -> None:
    assert shaped(given, gamma=gamma, bonus_coeff=coeff)[-1:] == add_bonus(given, coeff)[-1:]


@given(rewards, rewards, discounts, coefficients)
def test_shaping_is_linear(one: list[float], other: list[float], gamma: float, coeff: float) -> None:
    pairs = list(zip(one, other, strict=False))
    both = shaped([a + b for a, b in pairs], gamma=gamma, bonus_coeff=coeff)
    apart = [shaped([pair[side] for pair in pairs], gamma=gamma, bonus_coeff=coeff) for side in (0, 1)]
    assert both == pytest.approx([a + b for a, b in zip(*apart, strict=True)])


def test_an_infinite_reward_stays_one_when_there_is_no_bonus() -> None:
    assert add_bonus([float("inf"), 1.0], 0.0) == [float("inf"), 1.0]
