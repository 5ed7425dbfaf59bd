"""From every source of values to one validated configuration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.config.choices import plugins_section
from rllm.config.compose import Composed, compose
from rllm.config.layers import layer_from_keys, layers_from_overrides
from rllm.config.paths import leaves
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

Compose = Callable[..., Composed]
GUESS = {"rllm": {"env": {"name": "guess"}}}
RATE = "training.learning_rate"

ORIGINS = {
    "schema": "default",
    "backend": "backend local",
    "environment": "environment guess",
    "recipe": "recipe guess local/tiny",
    "first file": "first.yaml",
    "second file": "second.yaml",
    "command line": "command line",
}
"""Sources of values, lowest first, with the origins that they give."""


def test_without_user_layers_everything_is_default(composed: Compose) -> None:
    result = composed()
    assert result.config == RunConfig()
    assert result.backend_config.model_dump(mode="json")["model"] == {"name": "tiny", "cache": "cache", "lora_rank": 0}
    assert set(result.origins.values()) == {"default", "backend local"}


@pytest.mark.parametrize(("lower", "upper"), list(pairwise(ORIGINS)))
def test_of_two_sources_the_later_one_wins(
    lower: str, upper: str, registry: Registry, environment: dict[str, Any], backend_yaml: Path
) -> None:
    values = {source: 100 + position for position, source in enumerate(ORIGINS) if source in (lower, upper)}
    user_layers = layers_from_overrides(["rllm.env.name=guess"])
    for source, value in values.items():
        if source == "schema":
            values[source] = RunConfig().rllm.rollout.n
        elif source == "backend":
            backend_yaml.write_text(backend_yaml.read_text() + f"\nrllm: {{rollout: {{n: {value}}}}}\n")
        elif source == "environment":
            environment["defaults"]["rllm.rollout.n"] = value
        elif source == "recipe":
            environment["recipes"]["local/tiny"]["rllm.rollout.n"] = value
        elif source == "command line":
            user_layers += layers_from_overrides([f"rllm.rollout.n={value}"])
        else:
            user_layers.append(layer_from_keys({"rllm.rollout.n": value}, ORIGINS[source]))

    result = compose(registry, user_layers)
    assert result.config.rllm.rollout.n == values[upper]
    assert result.origins["rllm.rollout.n"] == ORIGINS[upper]


@pytest.mark.parametrize(
    ("words", "key", "value", "origin"),
    [
        ([], "rllm.workflow.name", "single_turn_workflow", "default"),
        (["rllm.rollout.n=3", "rllm.rollout.n=1"], "rllm.rollout.n", 1, "command line"),
        (["rllm.env.name=guess"], "rllm.workflow.name", "multi_turn_workflow", "environment guess"),
        (["rllm.env.name=rllm/guess"], "rllm.workflow.workflow_args.turns", 7, "environment guess"),
        (["rllm.env.name=guess", "rllm.workflow.name=mine"], "rllm.workflow.workflow_args", {}, "default"),
        (["rllm.env.name=guess"], RATE, 0.01, "recipe guess local/tiny"),
        (["rllm.env.name=guess", "model.name=big"], RATE, 0.5, "recipe guess local/big"),
        (["rllm.env.name=guess", "model.name=big", "model.name=tiny"], RATE, 0.01, "recipe guess local/tiny"),
        (["rllm.env.name=guess", "model.name=unknown"], RATE, 1e-4, "backend local"),
        (["rllm/backend=rllm-local/local"], "model.name", "tiny", "backend local"),
    ],
)
def test_chosen_environment_and_model_bring_their_values(
    composed: Compose, words: list[str], key: str, value: Any, origin: str
) -> None:
    result = composed(*layers_from_overrides(words))
    assert (result.value(key), result.origin(key)) == (value, origin)


@pytest.mark.parametrize(
    ("key", "value", "code", "values"),
    [
        ("rllm.backend", "needy", "backend-mismatch", ["rllm.backend", "environment guess", "needy"]),
        ("rllm.workflow.nmae", "x", "unknown-key", ["`rllm.workflow.nmae` from environment guess"]),
    ],
)
def test_environment_cannot_set_every_key(
    composed: Compose, environment: dict[str, Any], key: str, value: str, code: str, values: list[str]
) -> None:
    environment["defaults"] |= {"rllm.env.name": "", "model.name": "big"}
    assert composed(GUESS).config.rllm.env.name == "guess", "the user's choice is above"
    assert composed(GUESS).value(RATE) == 0.5, "the environment may choose the model"
    environment["defaults"][key] = value
    with expect_error(ConfigError, code, *values):
        composed(GUESS)


def test_recipe_cannot_choose_another_model(composed: Compose, environment: dict[str, Any]) -> None:
    environment["recipes"]["local/tiny"]["model.name"] = "big"
    with expect_error(ConfigError, "backend-mismatch", "model.name", "recipe guess local/tiny", "big"):
        composed(GUESS)


def test_allowed_plugins_are_read_before_the_registry() -> None:
    assert plugins_section([]).allow is None
    words = ["rllm.plugins.allow=[a]", "rllm.plugins.allow=[]"]
    assert plugins_section(layers_from_overrides(words)).allow == []
    with expect_error(ConfigError, "wrong-value", '`rllm.plugins.allow` is "a" (from command line)', "a list"):
        plugins_section(layers_from_overrides(["rllm.plugins.allow=a"]))


def test_tree_is_complete_and_values_have_origins(composed: Compose) -> None:
    result = composed({"rllm": {"algorithm": {"estimator_map": {"solver": {"name": "rloo"}}}}})
    both = result.config.model_dump(mode="json") | result.backend_config.model_dump(mode="json")
    assert result.tree == both
    assert list(result.origins) == [".".join(path) for path, _ in leaves(result.tree)]
    assert all(result.origins.values())
    assert result.origins["rllm.algorithm.estimator_map.solver.name"] == "my.yaml"
    assert result.origins["training.betas"] == "default"


def test_of_very_many_problems_the_first_are_shown(composed: Callable[..., Composed]) -> None:
    with expect_error(ConfigError, "unknown-key", "`k0`", "8950"):
        composed({f"k{index}": 1 for index in range(9000)})


@pytest.mark.parametrize("tree", [{"rllm": None}, {"rllm": {"trainer": None}}, {"model": None}])
def test_a_section_with_nothing_beneath_it_is_empty(composed: Callable[..., Composed], tree: dict[str, Any]) -> None:
    assert (
        composed(tree, *layers_from_overrides(["rllm.rollout.n=3"])).tree
        == composed({"rllm": {"rollout": {"n": 3}}}).tree
    )
