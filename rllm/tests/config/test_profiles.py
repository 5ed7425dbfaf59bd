"""Profiles: ready-made settings of a backend, chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from expecting import expect_error

from rllm.config.compose import Composed, compose
from rllm.config.layers import Layer, Tier, layers_from_overrides
from rllm.config.saved_config import read_config, save_config
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

PLAIN = "# @package _global_\nmodel: {name: tiny, lora_rank: 4}\ntraining: {learning_rate: 1e-4}\n"
SMALL = (
    "# @package _global_\ndefaults:\n  - /rllm/backend/far\n  - _self_\n"
    "model: {lora_rank: 2}\ntraining:\n  learning_rate: ${rllm.trainer.seed}\n"
)
Run = Callable[..., Composed]


@pytest.fixture
def run(registry: Registry, add_backend: Callable[..., Path]) -> Run:
    directory = add_backend("far", PLAIN, profiles={"small": "Little memory.", "lost": "Has no file."})
    (directory / "rllm" / "backend" / "far").mkdir()
    (directory / "rllm" / "backend" / "far" / "small.yaml").write_text(SMALL)

    def composed(*given: str | Layer) -> Composed:
        layers = [layers_from_overrides([each])[0] if isinstance(each, str) else each for each in given]
        return compose(registry, [*layers_from_overrides(["rllm.backend=far"]), *layers])

    return composed


def test_profile_wins_over_backend_file_and_is_origin(run: Run) -> None:
    composed = run("rllm.profile=small", "rllm.trainer.seed=3")
    assert composed.value("model.lora_rank") == 2
    assert composed.origins["model.lora_rank"] == "backend far, profile small"
    assert composed.origins["model.name"] == "backend far"
    assert composed.value("training.learning_rate") == 3
    assert run().value("model.lora_rank") == 4
    assert run("rllm.profile=small", "model.lora_rank=8", "rllm.trainer.seed=1").value("model.lora_rank") == 8


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((["rllm.profile=" + value], "unknown-choice") for value in ("big", "[]", "3")),
        (["rllm.backend=local", "rllm.profile=small"], "unknown-choice"),
        (["rllm.profile=lost"], "bad-backend-config"),
    ],
)
def test_profile_without_settings_is_an_error(run: Run, words: list[str], code: str) -> None:
    with expect_error(ConfigError, code):
        run(*words)


def test_saved_config_and_resumed_run_keep_profile(run: Run, tmp_path: Path) -> None:
    composed = run("rllm.profile=small", "rllm.trainer.seed=3")
    save_config(composed.build_saved_config(), tmp_path)
    assert run(Layer("config.yaml", read_config(tmp_path))).tree == composed.tree
    resumed = run(Layer("config.yaml", composed.tree, Tier.SAVED))
    assert resumed.tree == composed.tree
