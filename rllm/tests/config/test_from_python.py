"""Configurations given in Python, and those that Hydra hands to a script."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from omegaconf import DictConfig, OmegaConf

from rllm.config.from_python import layer_from_python
from rllm.config.layers import Layer, Tier
from rllm_core.errors import ConfigError

LOOP: dict[str, Any] = {}
LOOP["a"], LOOP["b"] = LOOP, [LOOP]
TREE = {"rllm": {"rollout": {"n": 4}, "trainer": {"logger": ["console", {"name": "tensorboard"}]}}}


@dataclass
class Structured:
    n: int = 4


@pytest.mark.parametrize(
    "config",
    [
        TREE,
        MappingProxyType({"rllm": OrderedDict(TREE["rllm"])}),
        OmegaConf.create(TREE),
        {"rllm": {"rollout": OmegaConf.structured(Structured), "trainer": OmegaConf.create(TREE["rllm"]["trainer"])}},
        OmegaConf.create({**TREE, "hydra": {"run": {"dir": "."}}}),
    ],
)
def test_mappings_of_all_kinds_are_a_layer(config: Any) -> None:
    layer = layer_from_python(config)
    assert layer == Layer("the Python config", TREE, Tier.USER)
    assert type(layer.tree["rllm"]) is dict


def test_path_is_a_file_and_none_is_empty(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("rllm: {rollout: {n: 4}}\n")
    layer = Layer(str(file), {"rllm": {"rollout": {"n": 4}}}, Tier.USER)
    assert layer_from_python(file) == layer_from_python(str(file)) == layer
    assert layer_from_python(None).tree == {}


def test_making_a_layer_does_not_change_the_config() -> None:
    config = {"hydra": {"a": 1}, "rllm": {"rollout": {"n": 4}}}
    layer_from_python(config).tree["rllm"]["rollout"]["n"] = 5
    assert config == {"hydra": {"a": 1}, "rllm": {"rollout": {"n": 4}}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (3, ("bad-value-type",)),
        (DictConfig("${x}"), ("bad-value-type",)),
        ({1: 2}, ("key-not-text", "1")),
        ({"a": {None: 2}}, ("key-not-text", "`a`")),
        ({"a": [np.float64(1)]}, ("bad-value-type", "`a.0`")),
        (LOOP, ("nested-too-deeply", "64")),
        ({"a": 10**5000}, ("bad-value-type", "`a`", "63")),
        (Path("no/such.yaml"), ("file-not-found", "`no/such.yaml`")),
        (".", ("not-a-file", "`.`")),
    ],
)
def test_what_is_no_configuration_is_refused(config: Any, message: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *message):
        layer_from_python(config)
