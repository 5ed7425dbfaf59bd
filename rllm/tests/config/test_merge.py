"""Merging layers: like OmegaConf, with a rule for plugin choices, and with the origin of every value."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error
from hypothesis import assume, given, strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import ConfigTypeError

from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm.config.merge import merge_layers
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig

leaf = st.none() | st.integers(0, 3) | st.sampled_from(["text", "???"]) | st.lists(st.integers(0, 3), max_size=2)
trees = st.dictionaries(
    st.sampled_from("ab"),
    st.recursive(leaf, lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_size=2,
)


def _merged(*values: Any, key: str = "rllm.algorithm.adv_estimator") -> Any:
    """What becomes of one key when layers set it one after the other."""
    *sections, last = key.split(".")
    layers = []
    for value in values:
        tree: dict[str, Any] = {last: value}
        for section in reversed(sections):
            tree = {section: tree}
        layers.append(Layer("a layer", tree))
    node: Any = merge_layers(layers, [RunConfig]).tree
    for part in (*sections, last):
        node = node[part]
    return node


@given(layers=st.lists(trees, min_size=1, max_size=4))
def test_merging_is_what_omegaconf_does(layers: list[dict[str, Any]]) -> None:
    try:
        expected = OmegaConf.to_container(OmegaConf.merge(*layers))
    except ConfigTypeError:
        assume(False)  # OmegaConf refuses a list over a mapping; here the later one wins
    assert merge_layers([Layer("", tree) for tree in layers], [RunConfig]).tree == expected


@pytest.mark.parametrize(("lower", "upper"), [({"x": 1}, [1]), ([1], {"x": 1}), ([1, 2], [3]), ({"x": 1}, None)])
def test_lists_scalars_and_values_of_another_kind_replace(lower: Any, upper: Any) -> None:
    assert _merged(lower, upper, key="some.key") == upper


@pytest.mark.parametrize(
    ("key", "value", "tier", "left"),
    [
        ("rllm.env.env_args", {"low": 1}, Tier.COMMAND_LINE, {}),
        ("rllm.env.env_args", {"low": 1}, Tier.USER, {"low": 1}),
        ("rllm.algorithm.estimator_map", {"judge": "rloo"}, Tier.COMMAND_LINE, {}),
        ("rllm", {"backend": "local"}, Tier.USER, {"backend": "local"}),
    ],
)
def test_typed_empty_mapping_empties_options_unlike_files(key: str, value: Any, tier: Tier, left: Any) -> None:
    layers = [layer_from_keys({key: value}, "default", Tier.PACKAGED), layer_from_keys({key: {}}, "typed", tier)]
    node: Any = merge_layers(layers, [RunConfig]).tree
    for part in key.split("."):
        node = node[part]
    assert node == left


def test_merging_does_not_change_the_layers() -> None:
    first, second = {"a": {"x": [1]}}, {"a": {"y": [2]}}
    merge_layers([Layer("", first), Layer("", second), Layer("", {"a": {"x": 5, "z": {}}})], []).tree["a"]["y"].append(
        3
    )
    assert (first, second) == ({"a": {"x": [1]}}, {"a": {"y": [2]}})


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        ("grpo", "rloo", "rloo"),
        ({"name": "grpo", "x": 1}, "rloo", "rloo"),
        ({"name": "grpo", "x": 1}, {"name": "rloo"}, {"name": "rloo"}),
        ({"name": "grpo", "x": 1}, {"name": "grpo", "y": 2}, {"name": "grpo", "x": 1, "y": 2}),
        ({"name": "grpo", "x": 1}, {"x": 2}, {"name": "grpo", "x": 2}),
        ("grpo", {"x": 2}, {"name": "grpo", "x": 2}),
        ({"name": "grpo", "x": 1}, {"name": "rllm-core/grpo"}, {"name": "rllm-core/grpo", "x": 1}),
        ({"name": "a/grpo", "x": 1}, {"name": "b/grpo"}, {"name": "b/grpo"}),
        ({"name": "grpo", "x": {"y": 1}}, {"x": {"z": 2}}, {"name": "grpo", "x": {"y": 1, "z": 2}}),
        (None, {"name": "ppo"}, {"name": "ppo"}),
    ],
)
def test_options_of_replaced_plugin_are_dropped(lower: Any, upper: Any, expected: Any) -> None:
    assert _merged(lower, upper) == expected
    assert _merged(lower, upper, key="rllm.algorithm.estimator_map.solver") == expected


@pytest.mark.parametrize(
    ("layers", "merged"),
    [
        ([{"name": "multi", "workflow_args": {"turns": 7}}, {"name": "other"}], {"name": "other", "workflow_args": {}}),
        (
            [{"name": "single", "workflow_args": {}}, {"workflow_args": {"depth": 2}}, {"name": "other"}],
            {"name": "other", "workflow_args": {"depth": 2}},
        ),
        (
            [{"name": "multi", "workflow_args": {"turns": 7}}, {"name": "rllm-core/multi"}],
            {"name": "rllm-core/multi", "workflow_args": {"turns": 7}},
        ),
        ([{"name": "a", "n_parallel_tasks": 4}, {"name": "b"}], {"name": "b", "n_parallel_tasks": 4}),
    ],
)
def test_other_workflow_drops_options_of_the_old_one(layers: list[dict[str, Any]], merged: dict[str, Any]) -> None:
    made = [Layer(str(index), {"rllm": {"workflow": tree}}) for index, tree in enumerate(layers)]
    assert merge_layers(made, [RunConfig]).tree["rllm"]["workflow"] == merged


def test_section_of_the_backend_is_no_plugin_choice() -> None:
    assert _merged({"name": "tiny", "depth": 2}, {"name": "big"}, key="model") == {"name": "big", "depth": 2}


def test_key_merges_over_an_interpolated_mapping() -> None:
    layers = [
        Layer("default", {"train": {"top_p": 0.9, "temperature": 1}}),
        Layer("my.yaml", {"val": "${train}"}),
        Layer("command line", {"val": {"temperature": 0}}),
    ]
    merged = merge_layers(layers, [])
    assert merged.tree["val"] == {"top_p": 0.9, "temperature": 0}
    assert merged.origin(("val", "top_p")) == "my.yaml"
    assert merged.origin(("val", "temperature")) == "command line"


@pytest.mark.parametrize("target", ["${nowhere}", "${val}", "${", "${number}"])
def test_mapping_replaces_interpolation_of_plain_value(target: str) -> None:
    layers = [Layer("a", {"val": target, "number": 3}), Layer("b", {"val": {"x": 1}})]
    assert merge_layers(layers, []).tree["val"] == {"x": 1}


def test_every_value_has_its_layer_as_origin() -> None:
    low = {"a": {"x": 1, "y": 1}, "mapping": {"x": 1}, "scalar": 1, "same": [1], "empty": {}, "open": 1}
    high = {"a": {"y": 2, "new": {"deep": 3}}, "mapping": 1, "scalar": {"x": 1}, "empty": {}, "open": "???"}
    merged = merge_layers([Layer("low", low), Layer("high", high)], [])
    for origin, paths in (
        ("low, high", ["a"]),
        ("low", ["a.x", "same", "same.0", "open"]),
        ("high", ["a.y", "a.new.deep", "mapping", "mapping.x", "scalar.x", "empty"]),
        ("", ["nowhere"]),
    ):
        assert {merged.origin(tuple(path.split("."))) for path in paths} == {origin}


@pytest.mark.parametrize("key", ["adv_estimator", "loss_fn", "estimator_map.judge"])
@pytest.mark.parametrize("tier", [Tier.USER, Tier.COMMAND_LINE])
def test_empty_mapping_as_plugin_choice_is_rejected(key: str, tier: Tier) -> None:
    dotted = f"rllm.algorithm.{key}"
    layers = [
        layer_from_keys({dotted: "a"}, "default", Tier.PACKAGED),
        layer_from_keys({dotted: {}}, "somewhere", tier),
    ]
    with expect_error(ConfigError, "empty-choice", dotted):
        merge_layers(layers, [RunConfig])
