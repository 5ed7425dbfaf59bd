"""Which estimators are compared, under which names, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.config.problems import parse
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_view.rescoring.setups import Picker, Setup, setups_of

Setups = Callable[..., list[Setup]]


@pytest.fixture
def setups(registry: Registry) -> Setups:
    def make(*estimators: Any, **options: Any) -> list[Setup]:
        return _setups_of(registry, *estimators, **options)[0]

    return make


def _setups_of(
    registry: Registry, *estimators: Any, roles: dict[str, Any] | None = None, of_run: bool = True, **algorithm: Any
) -> tuple[list[Setup], str]:
    config = parse(RunConfig, {"rllm": {"algorithm": algorithm}})
    return setups_of(Picker(registry=registry, config=config), estimators, roles or {}, of_run=of_run)


def _labels(setups: list[Setup]) -> list[str]:
    return [setup.label for setup in setups]


def test_the_first_estimator_given_is_the_reference(setups: Setups) -> None:
    found = setups("rloo", "reinforce")
    assert _labels(found) == ["rloo", "reinforce"]
    assert not any(setup.of_run for setup in found)


def test_with_fewer_than_two_the_runs_own_is_the_reference(setups: Setups) -> None:
    assert _labels(setups("rloo")) == ["grpo", "rloo"]
    assert _labels(setups()) == ["grpo"]
    assert _labels(setups("grpo")) == ["grpo"], "compared with itself it would be no comparison"
    assert [setup.of_run for setup in setups("rloo")] == [True, False]
    assert [setup.of_run for setup in setups("rloo", of_run=False)] == [False, False]


def test_the_runs_own_estimators_are_known_again_among_those_given(setups: Setups) -> None:
    assert [setup.of_run for setup in setups("rloo", "grpo")] == [False, True]


def test_given_estimators_do_without_the_runs_own_where_that_is_not_installed(setups: Setups) -> None:
    assert _labels(setups("rloo", "reinforce", adv_estimator="not_here")) == ["rloo", "reinforce"]


def test_options_are_spelled_as_in_a_configuration_and_shown(setups: Setups) -> None:
    found = setups("grpo", {"name": "grpo", "norm_adv_by_std_in_grpo": False})
    assert _labels(found) == ["grpo", "grpo(norm_adv_by_std_in_grpo=false)"]


def test_options_that_the_run_shares_hold_for_every_estimator(setups: Setups) -> None:
    assert _labels(setups(norm_adv_by_std_in_grpo=False)) == ["grpo(norm_adv_by_std_in_grpo=false)"]


def test_an_estimator_of_a_role_replaces_those_given_in_every_setup_but_the_runs(setups: Setups) -> None:
    found = setups("rloo", roles={"judge": "reinforce"}, estimator_map={"solver": {"name": "rloo", "loss_fn": "ppo"}})
    assert _labels(found) == ["grpo, solver: rloo", "rloo, judge: reinforce"]
    assert found[1].estimators.get("judge").plugin.name == "reinforce"
    assert found[1].estimators.get("solver").plugin.name == "rloo"


def test_a_role_alone_is_compared_with_the_run_as_it_was(setups: Setups) -> None:
    assert _labels(setups(roles={"judge": "reinforce"})) == ["grpo", "grpo, judge: reinforce"]


def test_a_role_given_what_it_has_already_changes_nothing(setups: Setups) -> None:
    assert _labels(setups(roles={"judge": "grpo"})) == ["grpo"]


def test_two_plugins_of_one_name_are_told_apart_by_where_they_come_from(setups: Setups, registry: Registry) -> None:
    registry.add(_record("grpo", frozenset()))
    assert _labels(setups("rllm-core/grpo", "in-process/grpo")) == ["rllm-core/grpo", "in-process/grpo"]


@pytest.mark.parametrize(
    ("choice", "code", "value"),
    [
        ("grop", "unknown-plugin", "'grpo'"),
        ({"name": "grpo", "norm": 1}, "unknown-option", "--estimator.norm"),
        ({"norm": 1}, "bad-choice", "--estimator"),
    ],
)
def test_unknown_names_and_options_are_refused(setups: Setups, choice: Any, code: str, value: str) -> None:
    with expect_error(ConfigError, code, value):
        setups("grpo", choice)


def test_the_same_estimator_twice_is_refused(setups: Setups) -> None:
    with expect_error(ConfigError, "duplicate-choice"):
        setups("rloo", "rloo")


@pytest.mark.parametrize("need", ["values", "ref_logprobs", "sum_pi_squared"])
def test_what_needs_a_model_is_refused_with_what_does_not(setups: Setups, registry: Registry, need: str) -> None:
    registry.add(_record("hungry", frozenset({need})))
    with expect_error(ConfigError, "missing-estimator-input", "'hungry'", need, "grpo, reinforce,"):
        setups("grpo", "hungry")


HUNGRY = {"estimator_map": {"judge": "hungry"}}


def test_a_run_whose_estimator_needs_a_model_is_left_out_and_that_is_said(registry: Registry) -> None:
    registry.add(_record("hungry", frozenset({"values"})))
    found, left_out = _setups_of(registry, "rloo", **HUNGRY)
    assert _labels(found) == ["rloo"]
    check_values(left_out, "rllm.algorithm.estimator_map.judge: ", "'hungry'", "values")
    assert _setups_of(registry, "rloo", "grpo", **HUNGRY)[1] == "", "nobody asked for the run's own"
    assert _labels(_setups_of(registry, roles={"judge": "rloo"}, **HUNGRY)[0]) == ["grpo, judge: rloo"]


def test_where_nothing_else_was_asked_for_the_error_names_the_way_out(setups: Setups, registry: Registry) -> None:
    registry.add(_record("hungry", frozenset({"values"})))
    for roles in ({}, {"other": "rloo"}):
        with expect_error(ConfigError, "missing-estimator-input", "--estimator") as error:
            setups(roles=roles, **HUNGRY)
        assert "--role-estimator ROLE=NAME" in error.value.hint


@pytest.mark.parametrize(
    "need", ["old_logprobs", "step_rewards", "greedy_rewards", "reward_components", "sampling_logprobs"]
)
def test_what_episodes_hold_is_not_refused(setups: Setups, registry: Registry, need: str) -> None:
    registry.add(_record("modest", frozenset({need})))
    assert _labels(setups("grpo", "modest")) == ["grpo", "modest"]


def _record(name: str, needs: frozenset[str]) -> EstimatorPlugin[NoParams]:
    def reward(inputs: Any, params: NoParams) -> Advantages:
        return Advantages(values=inputs.rewards)

    return EstimatorPlugin(name=name, summary="For tests.", params=NoParams, load=lambda: reward, needs=needs)
