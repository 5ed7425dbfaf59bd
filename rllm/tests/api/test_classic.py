"""Functions in rLLM's classic signature as estimators of the one kind there is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from plain_groups import make_inputs

from rllm.api.classic import NORM, FromClassic, reads, require_classic
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.params import NoParams
from rllm_core.errors import AdvantageError, PluginError
from rllm_core.schema.algorithm_sections import AlgorithmSection


def estimated(function: Any, inputs: AdvantageInput) -> Advantages:
    return FromClassic("mine", function)(inputs, NoParams())


async def _later(rewards: Any, algorithm_config: Any, **kwargs: Any) -> None:
    pass


def test_classic_function_receives_rewards_config_and_groups() -> None:
    seen: list[Any] = []

    def remember(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        seen.append((rewards, algorithm_config, kwargs))
        return rewards, rewards

    config = AlgorithmSection()
    inputs = replace(make_inputs([[1, 0, 2], [5]]), algorithm_config=config)
    estimated(remember, inputs)
    ((rewards, algorithm_config, kwargs),) = seen
    assert type(rewards) is list
    assert [(array.tolist(), array.dtype, array.ndim) for array in rewards] == [
        ([1, 0, 2], np.float64, 1),
        ([5], np.float64, 1),
    ]
    assert algorithm_config is config
    assert kwargs == {"traj_groups": list(inputs.groups), "norm_adv_by_std_in_grpo": True}
    assert type(kwargs["traj_groups"]) is list


def test_its_advantages_come_back_trajectory_by_trajectory() -> None:
    def times(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return [array * (index + 1) for index, array in enumerate(rewards)], rewards

    result = estimated(times, make_inputs([[1, 2], [3], [4, 5]]))
    assert (result.values.tolist(), result.level, result.returns) == ([1, 2, 6, 12, 15], "trajectory", None)
    assert result.values.dtype == np.float64
    assert estimated(times, make_inputs([])).values.shape == (0,)


@pytest.mark.parametrize(
    "give",
    [
        lambda rewards: ([list(array) for array in rewards], rewards),
        lambda rewards: [rewards, rewards],
        lambda rewards: (tuple(rewards), np.array([[0.0, 0.0]] * 2)),
        lambda rewards: (np.array(rewards, np.float32), rewards),
    ],
    ids=["lists of lists", "a list for the pair", "a tuple and a matrix", "float32"],
)
def test_any_container_of_numbers_is_accepted(give: Any) -> None:
    result = estimated(lambda rewards, config, **kwargs: give(rewards), make_inputs([[1, 2], [3, 4]]))
    assert result.values.tolist() == [1, 2, 3, 4]


def test_a_function_may_centre_its_rewards_in_place() -> None:
    def centre(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        for array in rewards:
            array -= array.mean()
        return rewards, rewards

    inputs = make_inputs([[1, 3], [5, 9]])
    assert estimated(centre, inputs).values.tolist() == [-1, 1, -2, 2]
    assert inputs.rewards.tolist() == [1, 3, 5, 9]


@pytest.mark.parametrize(
    ("give", "values"),
    [
        (lambda rewards: rewards[0], ["array([1., 0.])"]),
        (lambda rewards: None, ["None"]),
        (lambda rewards: (rewards, None), ["returns", "None"]),
        (lambda rewards: (rewards[:1], rewards), ["advantages", 1, 2]),
        (lambda rewards: ([rewards[0], rewards[1][:2]], rewards), ["advantages", (2,), "'t1:agent'", (3,)]),
        (lambda rewards: ([0.0, 0.0], rewards), ["advantages", "()", "'t0:agent'"]),
        (lambda rewards: ([rewards[0], ["high", "low", "none"]], rewards), ["advantages", "'t1:agent'", "'high'"]),
        (lambda rewards: ([rewards[0], [[1.0], [1.0, 2.0], []]], rewards), ["advantages", "'t1:agent'"]),
    ],
)
def test_wrong_result_names_estimator_group_and_shapes(give: Any, values: list[Any]) -> None:
    with expect_error(AdvantageError, "bad-estimator-result", "'mine'", *values):
        estimated(lambda rewards, config, **kwargs: give(rewards), make_inputs([[1, 0], [1, 2, 3]]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rewards: rewards, ("bad-estimator-signature", "algorithm_config", "traj_groups=")),
        (lambda inputs, params: inputs, ("bad-estimator-signature", "register_rllm_estimator")),
        (3, ("bad-estimator-signature", "'mine'")),
        (_later, ("bad-estimator-signature", "a coroutine function")),
    ],
)
def test_function_with_other_signature_fails_at_registration(function: Any, message: tuple[str, ...]) -> None:
    with expect_error(PluginError, *message):
        require_classic("mine", function)
    require_classic("mine", max)  # It does not tell its parameters.


def second_without_default(rewards: Any, norm_adv_by_std_in_grpo: bool, **kwargs: Any) -> Any:
    assert norm_adv_by_std_in_grpo is False
    return rewards, rewards


def second_with_none(rewards: Any, norm_adv_by_std_in_grpo: bool | None = None, **kwargs: Any) -> Any:
    return second_without_default(rewards, bool(norm_adv_by_std_in_grpo), **kwargs)


@pytest.mark.parametrize("function", [second_without_default, second_with_none])
def test_option_in_second_place_receives_its_value(function: Any) -> None:
    config = AlgorithmSection(norm_adv_by_std_in_grpo=False)
    inputs = replace(make_inputs([[1, 0]]), algorithm_config=config)
    assert estimated(function, inputs).values.tolist() == [1, 0]


class Called:
    def __call__(self, rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return kwargs["norm_adv_by_std_in_grpo"]


class NotReading:
    def __call__(self, rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return rewards, rewards


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Called(), True),
        (partial(Called()), True),
        (partial(second_with_none), True),
        (NotReading(), False),
        (partial(NotReading()), False),
        (max, False),
    ],
)
def test_reads_finds_names_in_objects_and_partials(function: Any, expected: bool) -> None:
    assert reads(function, NORM) is expected
