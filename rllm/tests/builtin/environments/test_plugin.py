"""The plugins, and several environments in one run."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error
from pydantic import ValidationError

from rllm.builtin.environments.mixed import MixedEnvironment, MixedEnvironmentParams, check, check_task, members
from rllm.builtin.environments.number_games import SumParams
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig


@pytest.mark.parametrize("name", ["guess", "sum"])
def test_tasks_of_another_kind_are_refused(records: dict[str, EnvironmentPlugin[Any]], name: str) -> None:
    check, params = records[name].check_task, records[name].params()
    assert check is not None
    for task in records[name].load()(params).tasks("train", params):
        check(params, task.data)
    with expect_error(ConfigError, "tasks-not-for-environment"):
        check(params, {"question": "1+1", "answer": "2"})


def test_defaults_and_recipes_have_known_keys(records: dict[str, EnvironmentPlugin[Any]]) -> None:
    for record in records.values():
        for values in (record.defaults, *record.recipes.values()):
            for key in values:
                section, *rest = key.split(".")
                if section not in RunConfig.model_fields:
                    continue
                model: Any = RunConfig.model_fields[section].annotation
                for part in rest:
                    if model is not None and hasattr(model, "model_fields"):
                        assert part in model.model_fields, key
                        model = model.model_fields[part].annotation


def test_recipe_options_are_options_of_the_environment(records: dict[str, EnvironmentPlugin[Any]]) -> None:
    prefix = "rllm.env.env_args."
    for record in records.values():
        for recipe in record.recipes.values():
            options = {key.removeprefix(prefix): value for key, value in recipe.items() if key.startswith(prefix)}
            assert options
            assert record.params(**options).model_dump().items() >= options.items()


def test_a_sum_without_numbers_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        SumParams(largest=0)


BOTH = {"guess": 3.0, "small": {"name": "sum", "ratio": 2, "largest": 2}}


def mixed(environments: dict[str, Any]) -> MixedEnvironmentParams:
    return MixedEnvironmentParams(environments=environments)


def test_tasks_come_from_all_environments() -> None:
    params = mixed(BOTH)
    tasks = MixedEnvironment.tasks("train", params)
    assert [len([task for task in tasks if task.data_source == source]) for source in BOTH] == [16, 9]
    assert tasks[0].id == "guess/guess-0"
    assert tasks[-1].data == {"a": 2, "b": 2, "environment": "small", "ratio": 2.0}


def test_a_rollout_runs_in_its_own_environment() -> None:
    params = mixed(BOTH)
    tasks = MixedEnvironment.tasks("train", params)
    environment = MixedEnvironment(params)
    environment.close()
    assert environment.reset(tasks[-1].data) == "What is 2 plus 2? Reply with a number only."
    outcome: Any = environment.step("4")
    assert (outcome.reward, outcome.done, outcome.correct) == (1.0, True, True)
    assert environment.final_state() is None
    environment.close()
    environment.reset(tasks[3].data)
    outcome = environment.step("3")
    assert outcome.correct


def test_checks_of_the_environments_run() -> None:
    params = mixed(BOTH)
    check(params)
    for task in MixedEnvironment.tasks("val", params):
        check_task(params, task.data)


@pytest.mark.parametrize(
    ("environments", "code", "value"),
    [
        ({"gess": 1.0}, "unknown-plugin", "guess"),
        ({"guess": -1.0}, "wrong-value", "guess.ratio"),
        ({"guess": {"ratio": "2"}}, "wrong-value", "guess.ratio"),
        ({"sum": {"larges": 3}}, "unknown-option", "largest"),
        ({"mixed": {"environments": {"sum": 1.0}}}, "wrong-value", "`mixed` itself"),
    ],
)
def test_wrong_environments_are_rejected(environments: dict[str, Any], code: str, value: str) -> None:
    with expect_error(ConfigError, code, value):
        members(mixed(environments))


def test_environments_with_tools_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm.builtin.environments.number_games.Sum.tools", lambda self, task: [])
    with expect_error(ConfigError, "wrong-value", "has tools"):
        MixedEnvironment.tasks("train", mixed({"sum": 1.0}))


def test_tasks_of_a_dataset_are_rejected() -> None:
    with expect_error(ConfigError, "tasks-not-for-environment"):
        check_task(mixed(BOTH), {"question": "1+1"})
