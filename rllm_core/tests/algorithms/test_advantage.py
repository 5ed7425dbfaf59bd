"""The four estimators against their formulas, on the conformance cases and on random ragged groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from plain_groups import make_inputs

from rllm_core.algorithms import advantage
from rllm_core.algorithms.options import GrpoParams, ReinforcePlusPlusBaselineParams, RlooParams
from rllm_core.contracts.params import NoParams

Rewards = list[list[float]]
EPSILON = 1e-6


def naive_grpo(groups: Rewards) -> list[float]:
    values = []
    for group in groups:
        rewards = np.array(group)
        if len(rewards) == 1:
            values += [rewards[0] / (1 + EPSILON)]
        elif len(rewards):
            values += ((rewards - rewards.mean()) / (rewards.std() + EPSILON)).tolist()
    return values


def naive_grpo_verl(groups: Rewards, epsilon: float = EPSILON) -> list[float]:
    values = []
    for group in groups:
        mean, std = (0.0, 1.0) if len(group) == 1 else (np.mean(group or [0]), np.std(group or [0, 0], ddof=1))
        values += [(reward - mean) / (std + epsilon) for reward in group]
    return values


def naive_grpo_trl(groups: Rewards) -> list[float]:
    return [0.0 if len(g) == 1 else value for g in groups for value in naive_grpo_verl([g], 1e-4)]


def naive_grpo_trl_without_std(groups: Rewards) -> list[float]:
    return [reward - np.mean(group) for group in groups for reward in group]


def naive_grpo_without_std(groups: Rewards) -> list[float]:
    return [r if len(group) == 1 else r - np.mean(group) for group in groups for r in group]


def naive_rloo(groups: Rewards) -> list[float]:
    values = []
    for group in groups:
        for index, reward in enumerate(group):
            others = group[:index] + group[index + 1 :]
            values.append(reward - np.mean(others) if others else reward)
    return values


def naive_rloo_trl(groups: Rewards) -> list[float]:
    return [0.0 if len(group) == 1 else value for group in groups for value in naive_rloo([group])]


def naive_reinforce(groups: Rewards) -> list[float]:
    return [reward for group in groups for reward in group]


def naive_reinforce_plus_plus_baseline(groups: Rewards) -> list[float]:
    centred = [reward - np.mean(group) for group in groups for reward in group]
    return [value / (np.std(centred) + EPSILON) for value in centred]


def naive_reinforce_plus_plus_baseline_verl(groups: Rewards) -> list[float]:
    """Every trajectory samples as many tokens."""
    values = np.repeat(naive_grpo_without_std(groups), 2)
    if len(values) < 2 or np.ptp(values) == 0:
        return [0.0] * (len(values) // 2)
    return ((values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8))[::2].tolist()  # type: ignore[no-any-return]


PLUS_PLUS = advantage.reinforce_plus_plus_baseline
# Multiples of 1/8 so that equal rewards are as common as different ones, and no std is tiny without being 0.
REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)
GROUPS = st.lists(st.lists(REWARD, max_size=9), max_size=6)


@pytest.mark.parametrize(
    ("estimator", "params", "naive"),
    [
        (advantage.grpo, GrpoParams(), naive_grpo),
        (advantage.grpo, GrpoParams(dialect="verl"), naive_grpo_verl),
        (advantage.grpo, GrpoParams(dialect="trl"), naive_grpo_trl),
        (advantage.grpo, GrpoParams(dialect="trl", norm_adv_by_std_in_grpo=False), naive_grpo_trl_without_std),
        (advantage.grpo, GrpoParams(norm_adv_by_std_in_grpo=False), naive_grpo_without_std),
        (advantage.rloo, RlooParams(), naive_rloo),
        (advantage.rloo, RlooParams(dialect="verl"), naive_rloo),
        (advantage.rloo, RlooParams(dialect="trl"), naive_rloo_trl),
        (advantage.reinforce, NoParams(), naive_reinforce),
        (PLUS_PLUS, ReinforcePlusPlusBaselineParams(), naive_reinforce_plus_plus_baseline),
        (PLUS_PLUS, ReinforcePlusPlusBaselineParams(dialect="verl"), naive_reinforce_plus_plus_baseline_verl),
    ],
)
@given(groups=GROUPS)
def test_ragged_groups_equal_a_loop_over_groups(estimator: Any, params: Any, naive: Any, groups: Any) -> None:
    inputs = make_inputs(groups)
    values = estimator(inputs, params).values
    assert values.tolist() == pytest.approx(naive(groups), rel=1e-12, abs=1e-12)
    assert not np.shares_memory(values, inputs.rewards)


@pytest.mark.parametrize(
    ("function", "params", "expected"),
    [
        (advantage.grpo, GrpoParams(), [0.5, 0.5, 0.0]),
        (PLUS_PLUS, ReinforcePlusPlusBaselineParams(dialect="verl"), [0.5, 0.5, 0.0]),
        (advantage.rloo, RlooParams(), [0.0, 1.0, 0.0]),
    ],
)
def test_baselines_are_what_rewards_are_compared_with(function: Any, params: Any, expected: list[float]) -> None:
    assert function(make_inputs([[1.0, 0.0], [3.0]]), params).baselines.tolist() == expected
