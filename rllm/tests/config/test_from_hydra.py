"""Of what Hydra hands to a script, that is the user's which the packages do not say themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from hydra import compose as hydra_compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from rllm.config.compose import Composed, compose
from rllm.config.from_python import layer_from_python, remove_packaged_values
from rllm.config.layers import layer_from_keys, layers_from_overrides
from rllm.config.packaged import DIRECTORY, HYDRA_VERSION_BASE
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

AddBackend = Callable[..., Path]
HEADER = "# @package _global_\n"


class Script:
    """A script under way, with that registry installed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def config(self, *words: str) -> DictConfig:
        """What Hydra hands to it for the words of its command line."""
        with initialize_config_dir(str(DIRECTORY), version_base=HYDRA_VERSION_BASE):
            config = hydra_compose("unified", list(words), return_hydra_config=True)
        HydraConfig.instance().set_config(config)
        own = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        assert isinstance(own, DictConfig)
        return own

    def composed(self, config: Any) -> Composed:
        return compose(self._registry, remove_packaged_values(layer_from_python(config), self._registry))


@pytest.fixture
def script(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setattr(Registry, "load", lambda **_: registry)
    yield Script(registry)
    HydraConfig.instance().cfg = None


@pytest.mark.parametrize(
    "words",
    [
        ["rllm/backend=local", "rllm.trainer.total_batches=-1", "rllm.rollout.n=8", "rllm.backend=rllm-local/local"],
        ["rllm.rollout.n=3", "rllm.rollout.n=4", "model.name=big", "+training.betas=[0.5,1]"],
        ["rllm.env.name=guess", "+rllm.env.env_args.low=3", "++rllm.env.env_args.high={x:1}"],
        ["+rllm.algorithm.estimator_map={solver: {name: rloo, x: 1}}", "rllm.workflow.name=other"],
        ["rllm.rollout.n=${rllm.trainer.seed}", "rllm.trainer.seed=3", "sampling.val=${sampling.train}"],
    ],
)
def test_script_overrides_mean_the_same_as_command_overrides(
    script: Script, registry: Registry, words: list[str]
) -> None:
    by_script, by_command = script.composed(script.config(*words)), compose(registry, layers_from_overrides(words))
    assert by_script.tree == by_command.tree
    assert by_script.origins == by_command.origins
    assert by_script.by_user == by_command.by_user


def test_script_changes_count_as_set_by_user(script: Script) -> None:
    config = script.config("rllm.trainer.seed=3")
    result = script.composed(
        OmegaConf.merge(config, {"rllm": {"rollout": {"n": 3}, "env": {"env_args": {"a.b": {"c.d": 1}}}}})
    )
    assert result.config.rllm.env.env_args == {"a.b": {"c.d": 1}}, "options may have dots in their names"
    assert {"rllm.rollout.n", "rllm.trainer.seed"} < result.by_user
    assert result.origins["rllm.rollout.n"] == "the Python config"
    assert result.origins["rllm.trainer.seed"] == "command line"


def test_the_group_chooses_the_backend(script: Script, add_backend: AddBackend) -> None:
    add_backend("far", HEADER + "model: {name: big}\n")
    result = script.composed(script.config("rllm/backend=far"))
    assert result.config.rllm.backend == "far"
    assert result.origins["rllm.backend"] == "command line"
    assert result.origins["model.name"] == "backend far"
    assert result.by_user == {"rllm.backend"}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["rllm.backend=far"], ["'far'", "rllm/backend=local"]),
        (["rllm/backend=far", "rllm.backend=local"], ["'local'", "rllm/backend=far"]),
        (["rllm.backend=null"], ["None", "rllm/backend=local"]),
    ],
)
def test_contradicting_backend_choices_are_an_error(
    script: Script, add_backend: AddBackend, words: list[str], values: list[str]
) -> None:
    add_backend("far", HEADER)
    config = script.config(*words)
    with expect_error(ConfigError, "backend-mismatch", *values):
        script.composed(config)


def test_script_groups_and_deletions_are_no_keys(script: Script, tmp_path: Path) -> None:
    own = tmp_path / "own" / "size" / "of_model" / "big.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(HEADER + "model: {name: big}\n")
    words = ["+size/of_model=big", "~rllm.agent.engine_args", "rllm.rollout.n=3"]
    result = script.composed(script.config(f"hydra.searchpath=[file://{tmp_path}/own]", *words))
    assert result.by_user == {"model.name", "rllm.rollout.n"}


def test_config_without_hydra_counts_as_set_by_user(script: Script, registry: Registry) -> None:
    layer = layer_from_keys({"rllm.rollout.n": 8}, "here")
    assert remove_packaged_values(layer, registry) == [layer], "there is no script"
    script.config("rllm.trainer.seed=3")
    assert script.composed({"rllm": {"rollout": {"n": 3}}}).by_user == {"rllm.rollout.n"}
    assert script.composed(None).by_user == set()
