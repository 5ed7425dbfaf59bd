"""Estimators that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from expecting import check_values

from rllm_core.algorithms import segments
from rllm_core.contracts import AdvantageInput, Advantages, EstimatorPlugin, NoParams
from rllm_plugin_kit import EstimatorContract

Function = Callable[[AdvantageInput, NoParams], Any]
STATE = "same_inputs_and_state_give_same_advantages"
SCOPE = "declared_scope_is_exact"


def record(function: Function, **fields: Any) -> EstimatorPlugin[NoParams]:
    return EstimatorPlugin(
        **{"name": "mine", "summary": "Mine.", "params": NoParams, "load": lambda: function} | fields
    )


def spread(values: Any, inputs: AdvantageInput) -> Any:
    return segments.spread(values, inputs.group_offsets)


def centred(inputs: AdvantageInput) -> Any:
    values = inputs.rewards - spread(segments.means(inputs.rewards, inputs.group_offsets), inputs)
    return np.where(spread(segments.constant(inputs.rewards, inputs.group_offsets), inputs), 0.0, values)


def good(inputs: AdvantageInput, params: NoParams) -> Advantages:
    return Advantages(values=centred(inputs))


def writes_into_its_inputs(inputs: AdvantageInput, params: NoParams) -> Advantages:
    inputs.rewards[:] -= 1.0
    return Advantages(values=inputs.rewards)


def changes_a_trajectory(inputs: AdvantageInput, params: NoParams) -> Advantages:
    for group in inputs.groups:
        group.trajectories[0].info["seen"] = True
    return good(inputs, params)


def divides_by_the_deviation(inputs: AdvantageInput, params: NoParams) -> Advantages:
    with np.errstate(all="ignore"):
        deviations = segments.standard_deviations(inputs.rewards, inputs.group_offsets)
        return Advantages(values=centred(inputs) / spread(deviations, inputs))


def against_everybody(inputs: AdvantageInput, params: NoParams) -> Advantages:
    rewards = inputs.rewards
    equal = not len(rewards) or rewards.max() == rewards.min()
    return Advantages(values=np.zeros(len(rewards)) if equal else rewards - rewards.mean())


def minus(baseline: Callable[[Any, Any], Any]) -> Function:
    """Return an estimator that subtracts from the rewards a number per group."""
    return of(
        lambda inputs: (
            inputs.rewards - segments.spread(baseline(inputs.rewards, inputs.group_offsets), inputs.group_offsets)
        )
    )


def of(values: Callable[[AdvantageInput], Any], **fields: Any) -> Function:
    """Return an estimator of these advantages."""
    return lambda inputs, params: Advantages(values=values(inputs), **fields)


def divided(inputs: AdvantageInput) -> Any:
    """Divide each group, and fail if there is none."""
    parts = np.split(centred(inputs), inputs.group_offsets[1:-1])
    return np.concatenate([part / part.std() if part.any() else part for part in parts if part.size])


LEVEL = "advantages_are_finite_at_the_declared_level"


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
        (writes_into_its_inputs, LEVEL, "`inputs.rewards.copy()`"),
        (changes_a_trajectory, "it_does_not_change_its_inputs", "`inputs.groups`"),
        (of(lambda inputs: segments.means(inputs.rewards, inputs.group_offsets)), LEVEL, "given ragged groups"),
        (divides_by_the_deviation, "smallest_batches_work", "given one group"),
        (of(lambda inputs: np.zeros(len(inputs.loss_mask)), level="token"), LEVEL, "'trajectory'"),
        (lambda inputs, params: centred(inputs), LEVEL, "Return Advantages(values=…, level=…)"),
        (minus(segments.means), "equal_rewards_give_zero_advantages", "Compare the rewards"),
        (
            minus(lambda rewards, offsets: rewards[offsets[:-1]]),
            "order_of_trajectories_and_groups_has_no_effect",
            "Return values in",
        ),
        (against_everybody, SCOPE, "Declare a wider"),
        (
            of(lambda inputs: centred(inputs) / np.maximum(np.diff(inputs.token_offsets), 1)),
            "prompt_length_does_not_change_advantages",
            "`inputs.loss_mask`",
        ),
        (of(divided), "smallest_batches_work", "ValueError"),
        (of(centred, returns=np.zeros(2)), LEVEL, "Returns are a"),
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

    assert complaint(EstimatorContract, record(looks, needs=frozenset({column})), LEVEL) == ""
    assert seen
    assert all(np.isfinite(values).all() and values.any() for values in seen)


@pytest.mark.parametrize("column", COLUMNS)
def test_undeclared_columns_are_absent(complaint: Any, column: str) -> None:
    def looks(inputs: AdvantageInput, params: NoParams) -> Advantages:
        assert getattr(inputs, column) is None
        return good(inputs, params)

    assert complaint(EstimatorContract, record(looks), LEVEL) == ""
