"""Whole configurations given back: the same run as they are, and the right one when somebody changes a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from omegaconf import OmegaConf

from rllm.config.compose import Composed
from rllm.config.layers import Layer, Tier, layer_from_file, layers_from_overrides
from rllm.config.saved_config import is_saved_config, remove_keys, save_config
from rllm_core.errors import ConfigError

Compose = Callable[..., Composed]


def _given_back(first: Composed, *changes: dict[str, Any], tier: Tier = Tier.USER) -> Layer:
    merged = OmegaConf.merge(OmegaConf.create(first.build_saved_config()), *changes)
    tree: Any = OmegaConf.to_container(merged)
    return Layer("config.yaml", tree, tier)


@pytest.mark.parametrize("tier", [Tier.SAVED, Tier.USER])
@pytest.mark.parametrize(
    "words",
    [
        ["rllm.algorithm.eps_clip=0.3"],
        ["actor.clip_ratio_high=0.4", "trainer.total_training_steps=7", "rllm.rollout.n=3"],
        ["actor.mini_batch_size=5", "rllm.trainer.total_epochs=2"],
    ],
)
def test_unchanged_config_gives_same_tree_and_user_keys(run_foreign: Compose, words: list[str], tier: Tier) -> None:
    first = run_foreign(*words)
    again = run_foreign(_given_back(first, tier=tier))
    assert again.tree == first.tree
    assert again.warnings == (first.warnings if tier is Tier.USER else ())
    set_once = {word.partition("=")[0] for word in words}
    assert set_once <= again.by_user or tier is Tier.SAVED
    assert "rllm.rollout.n_val" not in again.by_user
    assert again.config.rllm.composed is None


def test_changed_core_key_reaches_shared_and_derived_keys(run_foreign: Compose) -> None:
    core = {"rllm": {"algorithm": {"eps_clip": 0.3}, "rollout": {"n": 2}}, "data": {"train_batch_size": 10}}
    result = run_foreign(_given_back(run_foreign(), core))
    assert [result.value(f"actor.clip_ratio{end}") for end in ("", "_low", "_high")] == [0.3, 0.3, 0.3]
    assert (result.value("actor.mini_batch_size"), result.warnings) == (5, ())
    result = run_foreign(_given_back(run_foreign(), {"actor": {"kl_loss_coef": 0.4}}))
    assert result.value("rllm.algorithm.kl_beta") == 0.4
    (warning,) = result.warnings
    assert "deprecated" in warning


def test_command_line_wins_over_saved_config(run_foreign: Compose) -> None:
    first = run_foreign("rllm.algorithm.kl_beta=0.3")
    result = run_foreign(_given_back(first), "rllm.algorithm.kl_beta=0.1", "rllm.algorithm.eps_clip=0.4")
    assert (result.value("actor.kl_loss_coef"), result.value("actor.clip_ratio_high")) == (0.1, 0.4)
    assert result.warnings == ()


def test_environment_values_stay_without_user_tier(composed: Compose) -> None:
    first = composed({"rllm": {"env": {"name": "guess"}}})
    again = composed(_given_back(first))
    assert again.tree == first.tree
    assert again.by_user == {"rllm.env.name"}
    changed = composed(_given_back(first, {"training": {"learning_rate": 1e-4}}))
    assert changed.tree["training"]["learning_rate"] == 1e-4
    assert changed.by_user == {"rllm.env.name", "training.learning_rate"}


def test_user_layers_keep_origins_and_are_stored_once(composed: Compose) -> None:
    first = composed({"rllm": {"rollout": {"n": 3}}}, *layers_from_overrides(["rllm.trainer.seed=3"] * 2))
    again = composed(_given_back(first), *layers_from_overrides(["rllm.trainer.seed=3"]))
    assert again.origins == first.origins
    assert again.build_saved_config() == first.build_saved_config()
    assert [each["from"] for each in again.build_saved_config()["rllm"]["composed"]] == ["my.yaml", "command line"]


def test_interpolations_of_user_and_packages_stay_open(run_foreign: Compose) -> None:
    first = run_foreign("rllm.rollout.n=${rllm.trainer.seed}", "rllm.trainer.seed=3")
    again = run_foreign(_given_back(first, tier=Tier.SAVED), "rllm.trainer.seed=5", "actor.clip_ratio=0.3")
    assert (again.value("rllm.rollout.n"), again.value("actor.clip_ratio_low")) == (5, 0.3)


@pytest.mark.parametrize(
    "words",
    [
        ["rllm.env.name=guess", "rllm.workflow.name=other", "rllm.workflow.workflow_args={depth: 2}"],
        ["rllm.algorithm.adv_estimator.dialect=verl", "rllm.algorithm.estimator_map={solver: {name: rloo, x: 1}}"],
        ["training.schedule={name: cosine, end: 0}", "training.betas=[0.5, 1]", "rllm.env.env_args={ratio: '1e-4'}"],
    ],
)
def test_saved_file_gives_the_same_configuration(composed: Compose, tmp_path: Path, words: list[str]) -> None:
    first = composed(*layers_from_overrides(words))
    again = composed(layer_from_file(save_config(first.build_saved_config(), tmp_path)))
    assert (again.tree, again.config, again.origins) == (first.tree, first.config, first.origins)


def test_text_like_an_interpolation_stays_text(composed: Compose) -> None:
    first = composed(*layers_from_overrides([r"rllm.trainer.output_dir='\${x}'"]))
    assert first.value("rllm.trainer.output_dir") == "${x}"
    resolved: Any = OmegaConf.to_container(OmegaConf.create(first.build_saved_config()), resolve=True)
    assert composed(Layer("x", resolved)).tree == composed(_given_back(first)).tree == first.tree


def test_override_that_emptied_a_mapping_applies_again(composed: Compose) -> None:
    words = layers_from_overrides(["rllm.env.name=guess", "rllm.workflow.workflow_args={}"])
    first = composed(*words)
    assert first.value("rllm.workflow.workflow_args") == {}
    assert composed(_given_back(first)).tree == first.tree


def test_a_key_may_be_forgotten_whoever_gave_it(composed: Compose) -> None:
    first = composed({"rllm": {"rollout": {"n": 3, "n_val": 2}}})
    assert not is_saved_config(Layer("x", first.tree))
    changed = composed(_given_back(first, {"rllm": {"rollout": {"n_val": "${.n}"}}}))
    assert changed.value("rllm.rollout.n_val") == 3
    assert (changed.origins["rllm.rollout.n"], changed.origins["rllm.rollout.n_val"]) == ("my.yaml", "config.yaml")
    again = composed(remove_keys(_given_back(first), [("rllm", "rollout", "n")]))
    assert again.value("rllm.rollout") == {"n": 8, "n_val": 2, "engine": None}


@pytest.mark.parametrize("damaged", [[3], [{"from": "x"}], [{"from": "x", "set": "{"}], [{"from": "x", "set": "3"}]])
def test_damaged_user_layers_are_rejected(composed: Compose, damaged: list[Any]) -> None:
    tree = composed().build_saved_config()
    tree["rllm"]["composed"] = damaged
    with expect_error(ConfigError, "wrong-value", "`rllm.composed`"):
        composed(Layer("x", tree))
