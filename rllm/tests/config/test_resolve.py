"""Interpolations, and values left open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from expecting import check_values, expect_error
from omegaconf import OmegaConf

from rllm.config.compose import Composed
from rllm.config.layers import Layer, layers_from_overrides
from rllm.config.merge import merge_layers
from rllm.config.values import MergedValues, escape
from rllm_core.errors import ConfigError

Compose = Callable[..., Composed]


def test_interpolation_takes_the_final_value(composed: Compose) -> None:
    file = {"rllm": {"rollout": {"n_val": "${rllm.rollout.n}"}}, "sampling": {"val": "${sampling.train}"}}
    result = composed(file, *layers_from_overrides(["rllm.rollout.n=3", "sampling.train.top_p=0.5"]))
    assert result.config.rllm.rollout.n_val == 3
    assert result.config.sampling.val.top_p == 0.5
    assert result.origins["rllm.rollout.n_val"] == "my.yaml"
    assert result.origins["sampling.val.top_p"] == "my.yaml"


def test_value_left_open_by_backend_is_required(composed: Compose, backend_yaml: Path) -> None:
    backend_yaml.write_text("# @package _global_\nmodel:\n  name: ???\ntraining:\n  learning_rate: ???\n")
    with expect_error(ConfigError, "missing-key", "model.name=VALUE") as caught:
        composed()
    first, second = caught.value.message.splitlines()
    check_values(first, "`model.name`", "`???`", "backend local")
    check_values(second, "`training.learning_rate`", "`???`", "backend local")
    assert composed({"model": {"name": "x"}, "training": {"learning_rate": 1}}).tree["model"]["name"] == "x"


@pytest.mark.parametrize("text", ["${x}", r"\${x}", r"\\${x} ${", "plain", "a\\", "$ {x}", r"\\"])
def test_escaped_text_resolves_to_itself(text: str) -> None:
    tree = {"a": text, "b": [{"c": text}]}
    assert MergedValues({"x": 1, **escape(tree)}).resolve() == {"x": 1, **tree}


def test_resolver_result_that_is_not_yaml_is_rejected() -> None:
    OmegaConf.register_new_resolver("rllm_test_bytes", lambda: b"x")
    try:
        with expect_error(ConfigError, "bad-value-type", "`a`"):
            merge_layers([Layer("my.yaml", {"a": "${rllm_test_bytes:}"})], []).resolve()
    finally:
        OmegaConf.clear_resolver("rllm_test_bytes")
