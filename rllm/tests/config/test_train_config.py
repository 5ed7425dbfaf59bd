"""`build_train_config`: what the command would compose, as an object that can be changed and given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import expect_error
from omegaconf import OmegaConf

from rllm.api.train_config import build_train_config
from rllm.cli.configuring import plan_for, read_request
from rllm.config.compose import compose
from rllm.config.from_python import layer_from_python
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def environment() -> dict[str, Any]:
    return {"defaults": {"rllm.rollout.n": 3}, "recipes": {"local/big": {"training.learning_rate": 0.5}}}


def _tree(**arguments: Any) -> Any:
    tree: Any = OmegaConf.to_container(build_train_config(**arguments), resolve=True)
    assert isinstance(tree["rllm"]["composed"], list)
    return {**tree, "rllm": {**tree["rllm"], "composed": None}}


def _plan(config: Any, registry: Registry) -> RunPlan:
    return make_plan(compose(registry, [layer_from_python(config)]), registry)


def _by_command(*words: str) -> Any:
    return plan_for(read_request(words, None, (), {})).composed.tree


def test_every_argument_reaches_its_key() -> None:
    table = [
        ("model_name", "model.name", "big"),
        ("group_size", "rllm.rollout.n", 5),
        ("batch_size", "data.train_batch_size", 6),
        ("lr", "training.learning_rate", 0.25),
        ("lora_rank", "model.lora_rank", 4),
        ("total_steps", "rllm.trainer.total_batches", 7),
        ("val_freq", "rllm.trainer.test_freq", 8),
        ("save_freq", "rllm.trainer.save_freq", 9),
        ("project", "rllm.trainer.project_name", "p"),
        ("experiment", "rllm.trainer.experiment_name", "e"),
        ("output_dir", "rllm.trainer.output_dir", "o"),
        ("environment", "rllm.env.name", "guess"),
        ("backend", "rllm.backend", "rllm-local/local"),
    ]
    arguments = {argument: value for argument, _, value in table}
    config = build_train_config(**arguments)
    assert [OmegaConf.select(config, key) for _, key, _ in table] == [*arguments.values()]
    assert _tree(**arguments) == _by_command(*(f"{key}={value}" for _, key, value in table))
    assert build_train_config(total_epochs=4).rllm.trainer.total_epochs == 4


def test_file_is_below_arguments_and_overrides_above(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("rllm: {rollout: {n: 4, n_val: 4}, trainer: {seed: 4}}\n")
    words = ["rllm.trainer.seed=6", "model.name=big"]
    tree = _tree(group_size=5, config_file=file, environment="guess", overrides=words)
    assert (tree["rllm"]["rollout"], tree["rllm"]["trainer"]["seed"]) == ({"n": 5, "n_val": 4, "engine": None}, 6)
    assert tree["training"]["learning_rate"] == 0.5
    command = read_request(["guess", "rllm.rollout.n=5", *words], None, [str(file)], {})
    assert tree == plan_for(command).composed.tree


def test_arguments_set_the_keys_of_the_backend_spec(installed: Registry) -> None:
    keys = {"model_key": "model.cache", "learning_rate_key": "training.betas", "lora_rank_key": "model.lora_rank"}
    local = installed.get("backend", "local").plugin
    installed.add(replace(local, name="odd", config_yaml=None, **keys), distribution="rllm-odd")
    tree = _tree(backend="odd", model_name="m", lr=[0.5, 0.75], lora_rank=2)
    assert (tree["model"]["cache"], tree["training"]["betas"], tree["model"]["lora_rank"]) == ("m", [0.5, 0.75], 2)


def test_result_is_complete_and_composes_again_equally(installed: Registry) -> None:
    config = build_train_config(environment="guess", model_name="big", total_steps=7)
    plan = _plan(config, installed)
    assert plan.composed.build_saved_config() == OmegaConf.to_container(config)
    assert plan.composed.origins["rllm.trainer.total_batches"] == "build_train_config"
    assert plan.composed.origins["training.learning_rate"] == "recipe guess local/big"
    assert plan.composed.by_user == {"rllm.env.name", "model.name", "rllm.trainer.total_batches"}
    assert plan.warnings == ()


def test_all_ways_to_set_values_are_equal(installed: Registry, tmp_path: Path) -> None:
    words = ["rllm.env.name=guess", "rllm.rollout.n=5", "training.learning_rate=0.25"]
    values = {"rllm": {"env": {"name": "guess"}, "rollout": {"n": 5}}, "training": {"learning_rate": 0.25}}
    file = tmp_path / "my.yaml"
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(values)))
    trees = [
        _by_command("rllm/backend=local", *words),
        _by_command("guess", *words[1:]),
        plan_for(read_request([], None, [str(file)], {})).composed.tree,
        _tree(environment="guess", group_size=5, lr=0.25),
        _tree(config_file=file),
        _tree(overrides=words),
        _plan(OmegaConf.merge(build_train_config(environment="guess"), values), installed).composed.tree,
        _plan(values, installed).composed.tree,
    ]
    assert [tree for tree in trees if tree != trees[0]] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "nope"}, ("unknown-plugin", "`rllm.backend`", "build_train_config", "'nope'")),
        ({"group_size": "many"}, ("wrong-value", "`rllm.rollout.n`", '"many"', "build_train_config")),
        ({"lr": np.float64(0.5)}, ("bad-value-type", "`training.learning_rate`", "build_train_config")),
        ({"total_epochs": 2, "total_steps": 3}, ("unused-key", "`rllm.trainer.total_epochs`")),
        ({"overrides": "rllm.rollout.n=3"}, ("bad-override", "overrides=['rllm.rollout.n=3']")),
        ({"overrides": ["rllm.sdk.proxy.port=5"]}, ("unused-key",)),
        ({"config_file": "nowhere.yaml"}, ("file-not-found", "`nowhere.yaml`")),
    ],
)
def test_what_is_wrong_is_a_config_error(arguments: dict[str, Any], message: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *message):
        build_train_config(**arguments)
