"""Estimators that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expecting import check_values

from rllm_core.algorithms import segments
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_plugin_kit import EstimatorContract

Function = Callable[[AdvantageInput, NoParams], Any]
STATE = "same_inputs_and_state_give_same_advantages"
SCOPE = "declared_scope_is_exact"


def record(function: Function, **fields: Any) -> EstimatorPlugin[NoParams]:
    return EstimatorPlugin(
        **{"name": "mine", "summary": "Mine.", "params": NoParams, "load": lambda: function} | fields
    )


def centred(inputs: AdvantageInput) -> Any:
    offsets = inputs.group_offsets
    values = inputs.rewards - segments.spread(segments.means(inputs.rewards, offsets), offsets)
    values[np.repeat(segments.constant(inputs.rewards, offsets), segments.sizes(offsets))] = 0.0
    return values


def good(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=centred(inputs))


def writes_into_its_inputs(inputs: AdvantageInput, params: NoParams) -> Advantages:
    inputs.rewards[:] -= 1.0
    return Advantages(values=inputs.rewards)


def changes_a_trajectory(inputs: AdvantageInput, params: NoParams) -> Advantages:
    for group in inputs.groups:
        group.trajectories[0].info["seen"] = True
    return good(inputs, params)


def one_per_group(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=segments.means(inputs.rewards, inputs.group_offsets))


def divides_by_the_deviation(inputs: AdvantageInput, params: NoParams) -> Advantages:
    offsets = inputs.group_offsets
    with np.errstate(all="ignore"):
        deviations = segments.spread(segments.standard_deviations(inputs.rewards, offsets), offsets)
        return Advantages(values=centred(inputs) / deviations)


def per_token_after_all(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=np.zeros(len(inputs.loss_mask)), level="token")


def a_plain_array(inputs: AdvantageInput, params: NoParams) -> Any:
    return centred(inputs)


def a_rounded_zero(inputs: AdvantageInput, params: NoParams) -> Advantages:
    offsets = inputs.group_offsets
    return Advantages(values=inputs.rewards - segments.spread(segments.means(inputs.rewards, offsets), offsets))


def against_the_first_member(inputs: AdvantageInput, params: NoParams) -> Advantages:
    first = inputs.rewards[inputs.group_offsets[:-1]]
    return Advantages(values=inputs.rewards - segments.spread(first, inputs.group_offsets))


def against_everybody(inputs: AdvantageInput, params: NoParams) -> Advantages:
    rewards = inputs.rewards
    equal = not len(rewards) or rewards.max() == rewards.min()
    return Advantages(values=np.zeros(len(rewards)) if equal else rewards - rewards.mean())


def counts_prompts(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=centred(inputs) / np.maximum(np.diff(inputs.token_offsets), 1))


def nothing_for_nothing(inputs: AdvantageInput, params: NoParams) -> Advantages:
    parts = np.split(centred(inputs), inputs.group_offsets[1:-1])
    return Advantages(values=np.concatenate([part / part.std() if part.any() else part for part in parts if part.size]))


def returns_for_trajectories(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=centred(inputs), returns=inputs.rewards)


def with_a_running_mean() -> Function:
    seen: list[float] = []

    def estimate(inputs: AdvantageInput, params: NoParams) -> Advantages:
        seen.append(float(inputs.rewards.sum()))
        return Advantages(values=centred(inputs) * len(seen))

    return estimate


def test_a_good_estimator_has_no_complaints(complaints: Any) -> None:
    assert complaints(EstimatorContract, record(good)) == {}


@pytest.mark.parametrize(
    ("function", "test", "told"),
    [
        (writes_into_its_inputs, "advantages_are_finite_at_the_declared_level", "`inputs.rewards.copy()`"),
        (changes_a_trajectory, "it_does_not_change_its_inputs", "`inputs.groups`"),
        (one_per_group, "advantages_are_finite_at_the_declared_level", "given ragged groups"),
        (divides_by_the_deviation, "smallest_batches_work", "given one group"),
        (per_token_after_all, "advantages_are_finite_at_the_declared_level", "'trajectory'"),
        (a_plain_array, "advantages_are_finite_at_the_declared_level", "Return Advantages(values=…, level=…)"),
        (a_rounded_zero, "equal_rewards_give_zero_advantages", "Compare the rewards"),
        (against_the_first_member, "order_of_trajectories_and_groups_has_no_effect", "Return values in"),
        (against_everybody, SCOPE, "Declare a wider"),
        (counts_prompts, "prompt_length_does_not_change_advantages", "`inputs.loss_mask`"),
        (nothing_for_nothing, "smallest_batches_work", "ValueError"),
        (returns_for_trajectories, "advantages_are_finite_at_the_declared_level", "Returns are a"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, function: Function, test: str, told: str) -> None:
    assert told in complaint(EstimatorContract, record(function), test)


def test_state_between_calls_is_reported(complaint: Any) -> None:
    told = complaint(EstimatorContract, record(with_a_running_mean()), STATE)
    check_values(told, "state between calls", "random numbers")


class Forgetful:
    """A running baseline that checkpoints do not contain."""

    def __init__(self) -> None:
        self.baseline = 0.0

    def __call__(self, inputs: AdvantageInput, params: NoParams) -> Advantages:
        values = inputs.rewards - self.baseline
        self.baseline += float(inputs.rewards.sum())
        return Advantages(values=values)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_unsaved_state_is_reported(complaint: Any) -> None:
    told = complaint(EstimatorContract, record(Forgetful, keeps_state=True), STATE)
    check_values(told, "state_dict")


@pytest.mark.parametrize("scope", ["role", "batch"])
def test_a_scope_wider_than_needed_is_reported(complaint: Any, scope: str) -> None:
    told = complaint(EstimatorContract, record(good, scope=scope), SCOPE)
    assert f"scope={scope!r}" in told
    assert complaint(EstimatorContract, record(against_everybody, scope=scope), SCOPE) == ""


def test_dependence_on_the_group_needs_scope_group(complaint: Any) -> None:
    assert "only the rewards" in complaint(EstimatorContract, record(good, scope="trajectory"), SCOPE)


@pytest.mark.parametrize(
    ("fields", "told"), [({"needs": frozenset({"valeus"})}, "'valeus'"), ({"default_loss": "pppo"}, "'pppo'")]
)
def test_unknown_columns_and_losses_are_reported(complaint: Any, fields: dict[str, Any], told: str) -> None:
    assert told in complaint(EstimatorContract, record(good, **fields), "declared_columns_and_loss_exist")


COLUMNS = ["values", "old_logprobs", "ref_logprobs", "sum_pi_squared", "greedy_rewards"]


@pytest.mark.parametrize("column", [*COLUMNS, "step_rewards", "reward_components"])
def test_declared_needs_are_filled_with_finite_numbers(complaint: Any, column: str) -> None:
    seen = []

    def looks(inputs: AdvantageInput, params: NoParams) -> Advantages:
        seen.append(getattr(inputs, column))
        return good(inputs, params)

    test = "advantages_are_finite_at_the_declared_level"
    assert complaint(EstimatorContract, record(looks, needs=frozenset({column})), test) == ""
    assert seen
    assert all(np.isfinite(values).all() and values.any() for values in seen)


@pytest.mark.parametrize("column", COLUMNS)
def test_undeclared_columns_are_absent(complaint: Any, column: str) -> None:
    def looks(inputs: AdvantageInput, params: NoParams) -> Advantages:
        assert getattr(inputs, column) is None
        return good(inputs, params)

    assert complaint(EstimatorContract, record(looks), "advantages_are_finite_at_the_declared_level") == ""
