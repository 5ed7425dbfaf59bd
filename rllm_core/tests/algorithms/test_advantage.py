"""The four estimators against their formulas, on the conformance cases and on random ragged groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from plain_groups import make_inputs

from rllm_core.algorithms import advantage
from rllm_core.algorithms.options import GrpoParams, ReinforcePlusPlusBaselineParams, RlooParams
from rllm_core.contracts.estimator import AdvantageInput
from rllm_core.contracts.plugin import NoParams

Rewards = list[list[float]]
EPSILON = 1e-6


def grpo(inputs: AdvantageInput) -> list[float]:
    return advantage.grpo(inputs, GrpoParams()).values.tolist()


def grpo_without_std(inputs: AdvantageInput) -> list[float]:
    return advantage.grpo(inputs, GrpoParams(norm_adv_by_std_in_grpo=False)).values.tolist()


def grpo_verl(inputs: AdvantageInput) -> list[float]:
    return advantage.grpo(inputs, GrpoParams(dialect="verl")).values.tolist()


def grpo_trl(inputs: AdvantageInput) -> list[float]:
    return advantage.grpo(inputs, GrpoParams(dialect="trl")).values.tolist()


def grpo_trl_without_std(inputs: AdvantageInput) -> list[float]:
    return advantage.grpo(inputs, GrpoParams(dialect="trl", norm_adv_by_std_in_grpo=False)).values.tolist()


def rloo(inputs: AdvantageInput) -> list[float]:
    return advantage.rloo(inputs, RlooParams()).values.tolist()


def rloo_verl(inputs: AdvantageInput) -> list[float]:
    return advantage.rloo(inputs, RlooParams(dialect="verl")).values.tolist()


def rloo_trl(inputs: AdvantageInput) -> list[float]:
    return advantage.rloo(inputs, RlooParams(dialect="trl")).values.tolist()


def reinforce(inputs: AdvantageInput) -> list[float]:
    return advantage.reinforce(inputs, NoParams()).values.tolist()


def reinforce_plus_plus_baseline(inputs: AdvantageInput) -> list[float]:
    return advantage.reinforce_plus_plus_baseline(inputs, ReinforcePlusPlusBaselineParams()).values.tolist()


def reinforce_plus_plus_baseline_verl(inputs: AdvantageInput) -> list[float]:
    params = ReinforcePlusPlusBaselineParams(dialect="verl")
    return advantage.reinforce_plus_plus_baseline(inputs, params).values.tolist()


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


PAIRS = {
    "grpo": (grpo, naive_grpo),
    "grpo_verl": (grpo_verl, naive_grpo_verl),
    "grpo_trl": (grpo_trl, naive_grpo_trl),
    "grpo_trl_without_std": (grpo_trl_without_std, naive_grpo_trl_without_std),
    "grpo_without_std": (grpo_without_std, naive_grpo_without_std),
    "rloo": (rloo, naive_rloo),
    "rloo_verl": (rloo_verl, naive_rloo),
    "rloo_trl": (rloo_trl, naive_rloo_trl),
    "reinforce": (reinforce, naive_reinforce),
    "reinforce_plus_plus_baseline": (reinforce_plus_plus_baseline, naive_reinforce_plus_plus_baseline),
    "reinforce_plus_plus_baseline_verl": (reinforce_plus_plus_baseline_verl, naive_reinforce_plus_plus_baseline_verl),
}
OF_GROUPS = [grpo, grpo_verl, grpo_trl, grpo_trl_without_std, grpo_without_std, rloo, rloo_verl, rloo_trl]
CENTRING = [*OF_GROUPS, reinforce_plus_plus_baseline]

# Multiples of 1/8 so that equal rewards are as common as different ones, and no std is tiny without being 0.
REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)
GROUPS = st.lists(st.lists(REWARD, max_size=9), max_size=6)

by_estimator = pytest.mark.parametrize(("estimator", "naive"), PAIRS.values(), ids=PAIRS)


@by_estimator
@given(groups=GROUPS)
def test_ragged_groups_give_what_a_loop_over_groups_gives(
    estimator: Callable[[AdvantageInput], list[float]], naive: Callable[[Rewards], list[float]], groups: Rewards
) -> None:
    assert estimator(make_inputs(groups)) == pytest.approx(naive(groups), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("function", "params", "expected"),
    [
        (advantage.grpo, GrpoParams(), [0.5, 0.5, 0.0]),
        (advantage.reinforce_plus_plus_baseline, ReinforcePlusPlusBaselineParams(dialect="verl"), [0.5, 0.5, 0.0]),
        (advantage.rloo, RlooParams(), [0.0, 1.0, 0.0]),
    ],
)
def test_baselines_are_what_rewards_are_compared_with(function: Any, params: Any, expected: list[float]) -> None:
    assert function(make_inputs([[1.0, 0.0], [3.0]]), params).baselines.tolist() == expected


LARGE_GROUPS = st.lists(st.lists(REWARD, min_size=2, max_size=9), min_size=1, max_size=6)


@pytest.mark.parametrize("estimator", CENTRING)
@given(groups=LARGE_GROUPS, shift=REWARD)
def test_adding_a_constant_to_all_rewards_changes_nothing(
    estimator: Callable[[AdvantageInput], list[float]], groups: Rewards, shift: float
) -> None:
    shifted = [[reward + shift for reward in group] for group in groups]
    assert estimator(make_inputs(shifted)) == pytest.approx(estimator(make_inputs(groups)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("estimator", [grpo_without_std, grpo_trl_without_std, rloo, rloo_verl, rloo_trl, reinforce])
@given(groups=GROUPS, scale=st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaling_rewards_scales_advantages_that_are_not_divided_by_a_std(
    estimator: Callable[[AdvantageInput], list[float]], groups: Rewards, scale: float
) -> None:
    scaled = [[reward * scale for reward in group] for group in groups]
    expected = [scale * value for value in estimator(make_inputs(groups))]
    assert estimator(make_inputs(scaled)) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("estimator", [grpo, grpo_verl, reinforce_plus_plus_baseline])
@given(groups=LARGE_GROUPS, scale=st.sampled_from([2.0, 1024.0]))
def test_scaling_rewards_hardly_changes_advantages_that_are_divided_by_a_std(
    estimator: Callable[[AdvantageInput], list[float]], groups: Rewards, scale: float
) -> None:
    scaled = [[reward * scale for reward in group] for group in groups]
    assert estimator(make_inputs(scaled)) == pytest.approx(estimator(make_inputs(groups)), rel=1e-4)


@pytest.mark.parametrize(("function", "params"), [(advantage.reinforce, NoParams()), (advantage.rloo, RlooParams())])
def test_results_do_not_share_memory_with_the_rewards(function: Any, params: Any) -> None:
    inputs = make_inputs([[1.0], [2.0]])
    assert not np.shares_memory(function(inputs, params).values, inputs.rewards)
