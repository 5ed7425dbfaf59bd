"""The plugins, and what listing it costs."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error
from pydantic import ValidationError

from rllm.environments.options import GuessParams, SumParams
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


def test_defaults_and_recipes_of_the_core_name_keys_it_knows(records: dict[str, EnvironmentPlugin[Any]]) -> None:
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


def test_the_options_of_recipes_are_options_of_their_environment(records: dict[str, EnvironmentPlugin[Any]]) -> None:
    prefix = "rllm.env.env_args."
    for record in records.values():
        for recipe in record.recipes.values():
            options = {key.removeprefix(prefix): value for key, value in recipe.items() if key.startswith(prefix)}
            assert options
            assert record.params(**options).model_dump().items() >= options.items()


@pytest.mark.parametrize(
    ("params", "options", "message"),
    [
        (GuessParams, {"promt": "guess"}, "Extra inputs"),
        (GuessParams, {"prompt": 5}, "valid string"),
        (SumParams, {"largest": 0}, "greater than 0"),
        (SumParams, {"largest": 2.5}, "valid integer"),
        (SumParams, {"smallest": 1}, "Extra inputs"),
    ],
)
def test_options_that_make_no_sense_are_refused(params: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        params(**options)
