"""gae and reinforce_plus_plus: against loops over tokens, by hand, across gaps and with rewards of steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.errors import AdvantageError
from rllm_estimators.per_token import backward_sums

from .conftest import call, make_inputs


def rewards_of_tokens(inputs: AdvantageInput) -> list[float]:
    rewards = [0.0] * len(inputs.loss_mask)
    for t, reward in enumerate(inputs.rewards):
        start, end = inputs.token_offsets[t : t + 2]
        for position in reversed(range(start, end)):
            if inputs.loss_mask[position]:
                rewards[position] = reward
                break
    return rewards


def whitened(values: list[float], mask: Any) -> list[float]:
    kept = np.array([value for value, sampled in zip(values, mask, strict=True) if sampled])
    if len(kept) < 2 or np.ptp(kept) == 0:
        return [0.0] * len(values)
    scale = np.sqrt(kept.var(ddof=1) + 1e-8)
    return [(value - kept.mean()) / scale if sampled else 0.0 for value, sampled in zip(values, mask, strict=True)]


def naive_returns(inputs: AdvantageInput, rewards: list[float], gamma: float) -> list[float]:
    returns = [0.0] * len(rewards)
    for start, end in zip(inputs.token_offsets, inputs.token_offsets[1:], strict=False):
        running = 0.0
        for position in reversed(range(start, end)):
            if inputs.loss_mask[position]:
                running = rewards[position] + gamma * running
                returns[position] = running
    return returns


def naive_gae(inputs: AdvantageInput, rewards: list[float], gamma: float, lam: float) -> list[float]:
    assert inputs.values is not None
    advantages = [0.0] * len(rewards)
    for start, end in zip(inputs.token_offsets, inputs.token_offsets[1:], strict=False):
        following = running = 0.0
        for position in reversed(range(start, end)):
            if inputs.loss_mask[position]:
                value = float(inputs.values[position])
                running = rewards[position] + gamma * following - value + gamma * lam * running
                following = value
                advantages[position] = running
    return advantages


REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)
TURNS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=3)
MEMBER = st.fixed_dictionaries({"reward": REWARD, "turns": TURNS})
GROUPS = st.lists(st.lists(MEMBER, max_size=4), max_size=4)
SHARE = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@given(groups=GROUPS, gamma=SHARE)
def test_returns_are_those_of_a_loop_over_tokens(groups: Any, gamma: float) -> None:
    inputs = make_inputs(groups)
    result = call("reinforce_plus_plus", inputs, gamma=gamma)
    expected = whitened(naive_returns(inputs, rewards_of_tokens(inputs), gamma), inputs.loss_mask)
    assert result.level == "token"
    assert result.values.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(groups=GROUPS, gamma=SHARE, lam=SHARE, whiten=st.booleans())
def test_advantages_are_those_of_a_loop_over_tokens(groups: Any, gamma: float, lam: float, whiten: bool) -> None:
    inputs = make_inputs(groups)
    result = call("gae", inputs, gamma=gamma, lam=lam, whiten=whiten)
    expected = naive_gae(inputs, rewards_of_tokens(inputs), gamma, lam)
    values = np.where(inputs.loss_mask, inputs.values, 0.0)
    assert result.returns.tolist() == pytest.approx((np.array(expected) + values).tolist(), rel=1e-6, abs=1e-6)
    if whiten:
        expected = whitened(expected, inputs.loss_mask)
    assert result.values.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_step_rewards_are_on_the_last_tokens() -> None:
    member = {"reward": 99, "turns": [(1, 2), (1, 1), (1, 0), (1, 2)], "steps": [1.0, 2.0, 4.0, 8.0]}
    silent = {"reward": 5, "turns": [(3, 0)], "steps": [7.0]}
    inputs = make_inputs([[silent, member]])
    blind = replace(inputs, values=np.zeros_like(inputs.values))
    result = call("gae", blind, whiten=False, use_step_rewards=True, lam=1.0)
    # The third step said nothing: what it earned counts from the token before it.
    assert result.values[inputs.loss_mask].tolist() == [15, 15, 14, 8, 8]
    ignored = call("gae", blind, whiten=False, lam=1.0)
    assert ignored.values[inputs.loss_mask].tolist() == [99] * 5


def test_reward_of_empty_first_step_is_not_lost() -> None:
    before = {"reward": 0, "turns": [(1, 1)], "steps": [32.0]}
    member = {"reward": 0, "turns": [(2, 0), (1, 2)], "steps": [4.0, 8.0]}
    inputs = make_inputs([[before, member]])
    blind = replace(inputs, values=np.zeros_like(inputs.values))
    result = call("gae", blind, whiten=False, use_step_rewards=True, lam=1.0)
    assert result.values[inputs.loss_mask].tolist() == [32, 12, 8]


def test_step_rewards_follow_reordered_steps() -> None:
    member = {"reward": 0, "turns": [(1, 2), (1, 1), (1, 2)], "steps": [1.0, 2.0, 4.0]}
    inputs = make_inputs([[member, {"reward": 0, "turns": [(1, 1)], "steps": [0.0]}]])
    expected = call("reinforce_plus_plus", inputs, use_step_rewards=True).values
    inputs.groups[0].trajectories[0].steps.reverse()
    turned = replace(inputs, step_rewards=np.array([4.0, 2.0, 1.0, 0.0]))
    assert call("reinforce_plus_plus", turned, use_step_rewards=True).values.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_a_step_without_a_reward_is_named(name: str) -> None:
    good = {"reward": 1, "turns": [(1, 2)], "steps": [1.0]}
    bad = {"reward": 1, "turns": [(1, 2), (1, 2)], "steps": [1.0, None]}
    inputs = make_inputs([[good], [good, bad]])
    with pytest.raises(AdvantageError, match=r"(?s)Step 1 of trajectory 1 .*'t1:agent'.*use_step_rewards"):
        call(name, inputs, use_step_rewards=True)
    call(name, inputs)


def test_gae_without_a_critic_says_what_it_needs() -> None:
    with pytest.raises(AdvantageError, match="needs `values`"):
        call("gae", replace(make_inputs([[1, 0]]), values=None))


@given(
    terms=st.lists(st.tuples(REWARD, st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=70),
)
def test_the_recurrence_is_a_loop_from_the_end(terms: list[tuple[float, float]]) -> None:
    expected, running = [], 0.0
    for term, coefficient in reversed(terms):
        running = term + coefficient * running
        expected.append(running)
    values, coefficients = np.array(terms, np.float64).reshape(-1, 2).T
    assert backward_sums(values, coefficients).tolist() == pytest.approx(expected[::-1], rel=1e-12, abs=1e-12)


def test_long_discounted_sum_is_finite_and_right() -> None:
    coefficients = np.full(200_001, 0.99)
    coefficients[-1] = 0.0
    sums = backward_sums(np.ones(200_001), coefficients)
    assert sums[0] == pytest.approx(100, rel=1e-12)
    assert sums[-2] == 1.99
