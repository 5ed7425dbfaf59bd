"""Estimators of one number per trajectory: against loops over groups, and on examples that were computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.errors import AdvantageError

from .conftest import call, make_inputs

Rewards = list[list[float]]
Lengths = list[list[int]]
EPSILON = 1e-6


def by_group(advantage: Callable[[list[float], list[int]], list[float]]) -> Callable[[Rewards, Lengths], list[float]]:
    return lambda groups, lengths: [
        value for group, said in zip(groups, lengths, strict=True) for value in advantage(group, said)
    ]


def minus_mean(group: list[float], said: list[int]) -> list[float]:
    return [reward - sum(group) / len(group) if len(group) > 1 else reward for reward in group]


def a2po(group: list[float], said: list[int]) -> list[float]:
    soft = 2 * np.log(np.mean(np.exp(np.array(group) / 2))) if group else 0.0
    return [reward - soft for reward in group]


def dr_grpo_trl(group: list[float], said: list[int]) -> list[float]:
    return minus_mean(group, said) if len(group) > 1 else [0.0] * len(group)


def gpg(groups: Rewards, lengths: Lengths) -> list[float]:
    rewards = [reward for group in groups for reward in group]
    solved = sum(reward != 0 for reward in rewards)
    return [len(rewards) / max(solved, 1) * value / 2 for value in by_group(minus_mean)(groups, lengths)]


def grpo_passk(group: list[float], said: list[int]) -> list[float]:
    values = [0.0] * len(group)
    if len(group) > 1:
        second, best = sorted(group)[-2:]
        values[group.index(best)] = (best - second) / (np.std(group, ddof=1) + EPSILON)
    return values


def grpo_passk_plain(group: list[float], said: list[int]) -> list[float]:
    values = [0.0] * len(group)
    if len(group) > 1:
        second, best = sorted(group)[-2:]
        values[group.index(best)] = best - second
    return values


def maxrl_prime_rl(group: list[float], said: list[int]) -> list[float]:
    mean = sum(group) / max(len(group), 1)
    return [(reward - mean) / mean if mean > 0 else 0.0 for reward in group]


def maxrl_skyrl(group: list[float], said: list[int]) -> list[float]:
    mean = sum(group) / max(len(group), 1)
    return [(reward - mean) / (mean + EPSILON) if len(group) > 1 else reward for reward in group]


def opo(group: list[float], said: list[int]) -> list[float]:
    if len(group) < 2:
        return group
    weights = said if sum(said) else [1] * len(said)
    baseline = sum(w * r for w, r in zip(weights, group, strict=True)) / sum(weights)
    return [reward - baseline for reward in group]


def prpo(groups: Rewards, lengths: Lengths) -> list[float]:
    rewards = [reward for group in groups for reward in group]
    return [(reward - np.mean(rewards)) / (np.std(rewards) + EPSILON) for reward in rewards]


PAIRS: dict[str, tuple[str, dict[str, Any], Callable[[Rewards, Lengths], list[float]]]] = {
    "a2po": ("a2po", {"beta": 2.0}, by_group(a2po)),
    "dr_grpo": ("dr_grpo", {}, by_group(minus_mean)),
    "dr_grpo_trl": ("dr_grpo", {"dialect": "trl"}, by_group(dr_grpo_trl)),
    "gpg": ("gpg", {"f_norm": 2.0}, gpg),
    "grpo_passk": ("grpo_passk", {}, by_group(grpo_passk)),
    "grpo_passk_plain": ("grpo_passk", {"norm_adv_by_std_in_grpo": False}, by_group(grpo_passk_plain)),
    "maxrl_prime_rl": ("maxrl", {}, by_group(maxrl_prime_rl)),
    "maxrl_skyrl": ("maxrl", {"dialect": "skyrl"}, by_group(maxrl_skyrl)),
    "opo": ("opo", {}, by_group(opo)),
    "prpo": ("prpo", {}, prpo),
}

# Multiples of 1/8 so that equal rewards are as common as different ones, and means are exact.
REWARD = st.integers(-80, 80).map(lambda eighths: eighths / 8)
GROUPS = st.lists(st.lists(st.tuples(REWARD, st.integers(0, 5)), max_size=8), max_size=6)


def make_groups(rewards: Rewards, lengths: Lengths) -> list[list[dict[str, Any]]]:
    return [
        [{"reward": reward, "turns": [(1, length)]} for reward, length in zip(group, said, strict=True)]
        for group, said in zip(rewards, lengths, strict=True)
    ]


@pytest.mark.parametrize(("name", "options", "naive"), PAIRS.values(), ids=PAIRS)
@given(groups=GROUPS)
def test_ragged_groups_equal_a_loop_over_groups(name: str, options: dict[str, Any], naive: Any, groups: Any) -> None:
    rewards = [[reward for reward, _ in group] for group in groups]
    lengths = [[length for _, length in group] for group in groups]
    result = call(name, make_inputs(make_groups(rewards, lengths)), **options)
    assert result.level == "trajectory"
    assert result.values.tolist() == pytest.approx(naive(rewards, lengths), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("greedy", [np.nan, np.inf])
def test_a_trajectory_without_a_greedy_reward_is_named(greedy: float) -> None:
    inputs = replace(make_inputs([[1], [1, 0]]), greedy_rewards=np.array([1.0, 0.0, greedy]))
    with pytest.raises(AdvantageError, match=r"compare trajectory 1 in group 't1:agent' with: it is (nan|inf)\."):
        call("remax", inputs)


def test_missing_greedy_rollout_reports_the_first_trajectory() -> None:
    with pytest.raises(AdvantageError, match="trajectory 0 in group 't0:agent'") as caught:
        call("remax", replace(make_inputs([[1], [1, 0]]), greedy_rewards=None))
    assert "stage" in caught.value.hint
    assert call("remax", replace(make_inputs([]), greedy_rewards=None)).values.tolist() == []
