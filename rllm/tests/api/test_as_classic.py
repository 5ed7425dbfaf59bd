"""Estimators of the one kind there is as functions in rLLM's classic signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from plain_groups import make_groups

from rllm.api.classic import AsClassic
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.errors import AdvantageError, PluginError


def classic(function: Any, **record: Any) -> AsClassic:
    def params_of(config: Any, options: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        return config, options

    plugin = EstimatorPlugin(name="mine", summary="Mine.", load=lambda: function, **record)
    return AsClassic(plugin, function, params_of)


def lists(part: Any) -> list[list[float]]:
    return [array.tolist() for array in part]


def doubled(inputs: AdvantageInput, params: Any) -> Advantages:
    return Advantages(values=inputs.rewards * 2)


def by_length(inputs: AdvantageInput, params: Any) -> Advantages:
    return Advantages(values=inputs.rewards * inputs.response_lengths)


@pytest.mark.parametrize("given", [[[1.0, 2.0], [3.0]], [], [[]], [[], [4.0]]])
def test_advantages_and_returns_are_lists_like_the_rewards(given: list[list[float]]) -> None:
    rewards = [np.array(values) for values in given]
    advantages, returns = classic(doubled)(rewards)
    assert lists(advantages) == lists(returns) == [[2 * value for value in values] for values in given]
    assert lists(rewards) == given


def test_returned_lists_are_copies_of_estimates() -> None:
    rewards = [np.array([1.0, 2.0]), np.array([3.0])]
    advantages, returns = classic(lambda inputs, params: Advantages(values=inputs.rewards))(rewards)
    advantages[0] += 10
    assert (lists(rewards), lists(returns)) == ([[1, 2], [3]], [[1, 2], [3]])


def test_config_and_keywords_become_estimator_options() -> None:
    seen: list[Any] = []

    def remember(inputs: AdvantageInput, params: Any) -> Advantages:
        seen.append(params)
        return doubled(inputs, params)

    classic(remember)([np.ones(1)], "the config", strength=3)
    assert seen == [("the config", {"strength": 3})]


def test_estimator_reading_more_than_rewards_needs_groups() -> None:
    groups = make_groups([[0, 0], [0]], lengths=[[1, 2], [3]])
    rewards = [np.array([1.0, 2.0]), np.array([3.0])]
    with expect_error(AdvantageError, "missing-estimator-input", "'mine'", "response_lengths", "traj_groups="):
        classic(by_length)(rewards)
    advantages, _ = classic(by_length)(rewards, traj_groups=groups)
    assert lists(advantages) == [[1, 4], [9]], "the rewards that are given count, not those of the trajectories"


def test_reward_parts_may_be_missing_for_the_estimator() -> None:
    def without_parts(inputs: AdvantageInput, params: Any) -> Advantages:
        assert inputs.reward_components is None
        return doubled(inputs, params)

    parts = frozenset({"reward_components"})
    advantages, _ = classic(without_parts, needs=parts)([np.ones(2)], traj_groups=make_groups([[1, 1]]))
    assert lists(advantages) == [[2, 2]]
    with expect_error(AdvantageError, "missing-estimator-input", "reward_components"):
        classic(without_parts, needs=parts)([np.ones(2)])


ONE_GROUP = make_groups([[1, 1]])


@pytest.mark.parametrize(
    ("function", "record", "rewards", "groups", "values"),
    [
        (doubled, {"needs": frozenset({"values"})}, [np.ones(2)], ONE_GROUP, ["values"]),
        (doubled, {}, [[1.0, 2.0, 3.0]], ONE_GROUP, ["[3]", 1, 2]),
        (doubled, {}, [[1.0], [1.0]], ONE_GROUP, ["[1, 1]", 1, 2]),
        (doubled, {}, [], ONE_GROUP, ["[]", 1, 2]),
        (doubled, {}, [np.ones((1, 2))], None, ["shape (1, 2)"]),
        (lambda inputs, params: Advantages(values=np.ones(1)), {}, [np.ones(2)], None, ["'mine'", "(1,)"]),
    ],
)
def test_unfitting_estimator_or_rewards_are_rejected(
    function: Any, record: Any, rewards: Any, groups: Any, values: list[Any]
) -> None:
    with expect_error(AdvantageError, "bad-estimator-signature", *values):
        classic(function, **record)(rewards, traj_groups=groups)


def test_level_below_the_trajectory_is_refused() -> None:
    for level in ("step", "token"):
        with expect_error(PluginError, "bad-estimator-signature", level):
            classic(doubled, level=level)
