"""From every source of values to one validated configuration."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from hypothesis import given, strategies as st

from rllm.config.compose import Composed, compose, plugins_section
from rllm.config.keys import known_keys
from rllm.config.layers import Layer, layer_from_dotted, layer_from_file, layers_from_overrides
from rllm.config.packaged import base_layer
from rllm.config.paths import leaves
from rllm.config.yaml_text import as_yaml
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

Compose = Callable[..., Composed]

SOURCES = ["schema", "backend", "environment", "recipe", "first file", "second file", "command line"]
"""Lowest first."""
ORIGINS = {
    "schema": "default",
    "backend": "backend local",
    "environment": "environment guess",
    "recipe": "recipe guess local/tiny",
    "first file": "first.yaml",
    "second file": "second.yaml",
    "command line": "command line",
}


def test_without_user_layers_everything_is_default(composed: Compose) -> None:
    result = composed()
    assert result.config == RunConfig()
    assert result.backend_config.model_dump(mode="json")["model"] == {"name": "tiny", "cache": "cache", "lora_rank": 0}
    assert set(result.origins.values()) == {"default", "backend local"}


@pytest.mark.parametrize(("lower", "upper"), list(combinations(SOURCES, 2)))
def test_of_two_sources_the_later_one_wins(
    lower: str,
    upper: str,
    registry: Registry,
    environment: dict[str, Any],
    backend_yaml: Path,
    tmp_path: Path,
) -> None:
    values = {source: 100 + position for position, source in enumerate(SOURCES) if source in (lower, upper)}
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
            user_layers.append(layer_from_dotted({"rllm.rollout.n": value}, ORIGINS[source]))

    result = compose(registry, user_layers)
    assert result.config.rllm.rollout.n == values[upper]
    assert result.origins["rllm.rollout.n"] == ORIGINS[upper]


@pytest.mark.parametrize(("earlier", "later"), list(pairwise([3, 1, 2])))
def test_of_two_overrides_of_one_key_the_later_one_wins(composed: Compose, earlier: int, later: int) -> None:
    result = composed(*layers_from_overrides([f"rllm.rollout.n={earlier}", f"rllm.rollout.n={later}"]))
    assert result.config.rllm.rollout.n == later


@pytest.mark.parametrize("name", ["guess", "rllm/guess"])
def test_a_chosen_environment_brings_its_defaults(composed: Compose, name: str) -> None:
    result = composed({"rllm": {"env": {"name": name}}})
    assert result.config.rllm.workflow.name == "multi_turn_workflow"
    assert result.config.rllm.workflow.workflow_args == {"turns": 7}
    assert result.origins["rllm.workflow.name"] == "environment guess"
    assert result.config.rllm.env.name == name


def test_without_an_environment_no_environment_layer_is_merged(composed: Compose) -> None:
    assert composed().config.rllm.workflow.name == "single_turn_workflow"


@pytest.mark.parametrize(("model", "rate"), [("tiny", 0.01), ("big", 0.5), ("unknown", 1e-4)])
def test_the_recipe_of_the_chosen_model_is_used(composed: Compose, model: str, rate: float) -> None:
    result = composed({"rllm": {"env": {"name": "guess"}}, "model": {"name": model}})
    assert result.tree["training"]["learning_rate"] == rate


def test_the_model_of_the_highest_layer_decides_about_the_recipe(composed: Compose) -> None:
    layers = [{"rllm": {"env": {"name": "guess"}}, "model": {"name": "big"}}, {"model": {"name": "tiny"}}]
    assert composed(*layers).origins["training.learning_rate"] == "recipe guess local/tiny"


def test_the_environment_may_choose_the_model_when_the_user_does_not(
    composed: Compose, environment: dict[str, Any]
) -> None:
    environment["defaults"]["model.name"] = "big"
    assert composed({"rllm": {"env": {"name": "guess"}}}).tree["training"]["learning_rate"] == 0.5


def test_the_users_workflow_does_not_inherit_the_options_of_the_environments(composed: Compose) -> None:
    result = composed({"rllm": {"env": {"name": "guess"}, "workflow": {"name": "mine"}}})
    assert result.config.rllm.workflow.workflow_args == {}


@pytest.mark.parametrize("name", ["local", "rllm-local/local"])
def test_the_backend_may_be_chosen_by_either_name(composed: Compose, name: str) -> None:
    result = composed(*layers_from_overrides([f"rllm/backend={name}"]))
    assert result.config.rllm.backend == name
    assert result.origins["model.name"] == "backend local"


def test_the_tree_is_complete_and_every_value_has_an_origin(composed: Compose) -> None:
    result = composed({"rllm": {"algorithm": {"estimator_map": {"solver": {"name": "rloo"}}}}})
    both = result.config.model_dump(mode="json") | result.backend_config.model_dump(mode="json")
    assert result.tree == both
    assert list(result.origins) == [".".join(path) for path, _ in leaves(result.tree)]
    assert all(result.origins.values())
    assert result.origins["rllm.algorithm.estimator_map.solver.name"] == "my.yaml"
    assert result.origins["training.betas"] == "default"


def test_composing_changes_neither_layers_nor_records(
    registry: Registry, composed: Compose, environment: dict[str, Any]
) -> None:
    layer = Layer("my.yaml", {"rllm": {"env": {"name": "guess"}, "workflow": {"workflow_args": {"depth": 1}}}})
    first = compose(registry, [layer])
    assert compose(registry, [layer]) == first
    assert layer.tree["rllm"]["workflow"] == {"workflow_args": {"depth": 1}}
    assert environment["defaults"]["rllm.workflow.workflow_args"] == {"turns": 7}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rllm.backend=nope"], ("unknown-plugin", "`rllm.backend`", "'nope'")),
        (["rllm.env.name=nope"], ("unknown-plugin", "`rllm.env.name`", "'nope'")),
        (["rllm.backend="], ("unknown-plugin", "`rllm.backend`")),
        (["rllm.backend=3"], ("wrong-value", "`rllm.backend`")),
        (["rllm.backend=null"], ("wrong-value", "`rllm.backend`")),
        (["rllm.env.name=[x]"], ("wrong-value", "`rllm.env.name`", '"x"')),
        (["rllm=5"], ("wrong-value", "`rllm`")),
        (["rllm={}"], ("empty-choice", "`rllm`")),
        (["rllm.rollout={}"], ("empty-choice", "`rllm.rollout`")),
        (["rllm.env=null"], ("wrong-value", "`rllm.env`")),
        (["rllm.env.name=guess", "model=5"], ("wrong-value", "`model`")),
        (["model=5"], ("wrong-value", "`model`")),
    ],
)
def test_a_choice_that_cannot_be_used_names_the_key_and_its_origin(
    composed: Compose, words: list[str], message: tuple[str, ...]
) -> None:
    with expect_error(ConfigError, *message) as caught:
        composed(*layers_from_overrides(words))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("source", "key", "value", "origin"),
    [
        ("defaults", "rllm.backend", "needy", "environment guess"),
        ("defaults", "rllm.env.name", "", None),
        ("recipes", "model.name", "big", "recipe guess local/tiny"),
    ],
)
def test_plugins_do_not_choose_for_the_user(
    composed: Compose, environment: dict[str, Any], source: str, key: str, value: str, origin: str | None
) -> None:
    target = environment["defaults"] if source == "defaults" else environment["recipes"]["local/tiny"]
    target[key] = value
    layer = {"rllm": {"env": {"name": "guess"}}}
    if origin is None:  # the user's own choice lies above
        assert composed(layer).config.rllm.env.name == "guess"
        return
    with expect_error(ConfigError, "backend-mismatch", key, origin, value):
        composed(layer)


def test_defaults_of_an_environment_are_checked_like_all_others(composed: Compose, environment: dict[str, Any]) -> None:
    environment["defaults"]["rllm.workflow.nmae"] = "x"
    with pytest.raises(ConfigError, match=r"`rllm\.workflow\.nmae` from environment guess"):
        composed({"rllm": {"env": {"name": "guess"}}})


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ([], None),
        (["rllm.plugins.allow=[rllm-local]"], ["rllm-local"]),
        (["rllm.plugins.allow=[a]", "rllm.plugins.allow=[]"], []),
    ],
)
def test_the_allowed_plugins_are_known_before_there_is_a_registry(words: list[str], allowed: list[str] | None) -> None:
    assert plugins_section(layers_from_overrides(words)).allow == allowed


def test_a_wrong_list_of_allowed_plugins_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r'`rllm\.plugins\.allow` is "rllm-local" \(from command line\): .* a list'):
        plugins_section(layers_from_overrides(["rllm.plugins.allow=rllm-local"]))


names = st.sampled_from(sorted({name for path in known_keys(RunConfig) for name in path} | {"model", "training"}))
texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5)
json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats()
    | texts
    | st.sampled_from(["???", "${", "${rllm}", "${a.b}", "guess", "local", "needy", "grpo", "1e-4"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=3),
    max_leaves=6,
)
dotted = st.sampled_from([".".join(path) for path in known_keys(RunConfig)] + ["model", "model.name", "training.betas"])
user_layer = st.dictionaries(names, json_like, max_size=3) | st.builds(
    lambda key, value: layer_from_dotted({key: value}, "").tree, dotted, json_like
)


@given(trees=st.lists(user_layer, max_size=3))
def test_any_tree_is_a_configuration_or_a_config_error(composed: Compose, trees: list[dict[str, Any]]) -> None:
    try:
        result = composed(*trees)
    except ConfigError as error:
        assert error.message
    else:
        assert RunConfig.model_validate({key: result.tree[key] for key in RunConfig.model_fields}) == result.config


def test_composing_is_fast(composed: Compose, tmp_path: Path) -> None:
    words = [f"rllm.env.env_args.option_{number}={number}" for number in range(20)]
    file = tmp_path / "my.yaml"
    file.write_text(as_yaml(base_layer().tree))
    layers = [*layers_from_overrides(["rllm.trainer.seed=${rllm.rollout.n}", *words]), layer_from_file(file)]
    composed(*layers)
    started = time.process_time()
    composed(*layers)
    assert time.process_time() - started < 0.15


def test_of_very_many_problems_the_first_are_shown(composed: Callable[..., Composed]) -> None:
    with expect_error(ConfigError, "unknown-key", "`k0`", "8950"):
        composed({f"k{index}": 1 for index in range(9000)})


@pytest.mark.parametrize("tree", [{"rllm": None}, {"rllm": {"trainer": None}}, {"model": None}])
def test_a_section_with_nothing_beneath_it_is_empty(composed: Callable[..., Composed], tree: dict[str, Any]) -> None:
    assert (
        composed(tree, *layers_from_overrides(["rllm.rollout.n=3"])).tree
        == composed({"rllm": {"rollout": {"n": 3}}}).tree
    )
