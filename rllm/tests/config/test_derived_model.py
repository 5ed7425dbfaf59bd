"""A backend whose model follows from its own plain top-level key, like Tinker's `tinker_base_url`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from omegaconf import OmegaConf
from program_registry import program_registry
from pydantic import Field

from rllm.config.compose import Composed, compose
from rllm.config.layers import Layer, Tier, layer_from_keys, layers_from_overrides
from rllm.config.saved_config import save_config
from rllm.runs.run_directory import run_directory_path
from rllm.training.starting import plan_resumption
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, DerivedKey
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

Run = Callable[..., Composed]
MODEL = "model.name"
DERIVED = "service_url, by derivation"
RATES = {"small": 0.1, "large": 0.2, "mine": 0.3}
"""Learning rates of the recipes, by model."""
CAPABLE = Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}))


class ModelSection(Params):
    name: str = Field("large", description="Model.")
    rank: int = Field(32, description="Rank of adapters.")


class TrainingSection(Params):
    learning_rate: float = Field(1.0, gt=0, description="Step size.")


class RemoteSections(Params):
    service_url: str | None = Field(None, description="Where the service is; `here` starts one.")
    service_timeout: float = Field(30.0, gt=0, description="Seconds.")
    model: ModelSection = Field(default_factory=lambda: ModelSection(rank=8), description="What is trained.")
    training: TrainingSection = Field(default_factory=TrainingSection, description="How it is trained.")


def _model_of(url: str | None) -> str:
    return "small" if url == "here" else "large"


def _registry(*derived: DerivedKey, yaml: Path | None = None, recipe: dict[str, Any] | None = None) -> Registry:
    registry = Registry()
    record = BackendPlugin(
        name="remote",
        summary="A backend that is never loaded.",
        load_params=lambda: RemoteSections,
        load=lambda: Backend,
        config_yaml=None if yaml is None else lambda: yaml,
        derived_keys=derived,
        capabilities=Capabilities(),
    )
    registry.add(record, distribution="rllm-remote")
    environment = EnvironmentPlugin(
        name="guess",
        summary="An environment that is never loaded.",
        load=lambda: lambda params: None,  # type: ignore[arg-type,return-value]
        recipes={f"remote/{name}": {"training.learning_rate": rate} | (recipe or {}) for name, rate in RATES.items()},
    )
    registry.add(environment, distribution="rllm")
    return registry


def _compose(registry: Registry, *given: str | Layer) -> Composed:
    chosen = layer_from_keys({"rllm.backend": "remote", "rllm.env.name": "guess"}, "my.yaml")
    layers = [layers_from_overrides([each])[0] if isinstance(each, str) else each for each in given]
    return compose(registry, [chosen, *layers])


ROW = DerivedKey(native=MODEL, of=("service_url",), derive=_model_of)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Compose with the defaults in a YAML file too."""
    file = tmp_path / "rllm" / "backend" / "remote.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nservice_url: null\nservice_timeout: 30.0\nmodel: {rank: 8}\n")
    registry = _registry(ROW, yaml=file)
    return lambda *given: _compose(registry, *given)


@pytest.mark.parametrize(
    ("words", "model", "origin"),
    [
        ([], "large", DERIVED),
        (["service_url=here"], "small", DERIVED),
        (["service_url=http://127.0.0.1:1"], "large", DERIVED),
        (["service_url=${rllm.trainer.project_name}", "rllm.trainer.project_name=here"], "small", DERIVED),
        (["service_url=here", "model.name=mine"], "mine", "command line"),
        (["model.name=large", "service_url=here"], "large", "command line"),
    ],
)
def test_derived_model_brings_its_recipe_unless_set(run: Run, words: list[str], model: str, origin: str) -> None:
    result = run(*words)
    assert result.value(MODEL) == model
    assert result.origins[MODEL] == origin
    assert result.value("training.learning_rate") == RATES[model]
    assert result.origins["training.learning_rate"] == f"recipe guess remote/{model}"
    assert (MODEL in result.by_user) is (origin == "command line")
    without_file = _compose(_registry(ROW), *words)
    assert (without_file.value(MODEL), without_file.value("training.learning_rate")) == (model, RATES[model])


def test_plain_values_at_top_level_are_keys(run: Run) -> None:
    result = run("service_url=here", "service_timeout=5")
    assert isinstance(result.backend_config, RemoteSections)
    assert (result.backend_config.service_url, result.backend_config.service_timeout) == ("here", 5.0)
    assert result.origins["service_url"] == "command line"
    assert {"service_url", "service_timeout"} <= result.by_user
    assert run().value("service_timeout") == 30.0
    for word, *error in (
        ("service_ulr=here", "unknown-key", "`service_ulr`", "`service_url=here`"),
        ("service=here", "unknown-key", "`service`", "`service_url=here`"),
        ("service_url=3", "wrong-value", "`service_url`"),
        ("service_url.host=here", "wrong-value", "`service_url`"),
        ("service_timeout=0", "wrong-value", "`service_timeout`"),
        ("rllm.service_url=here", "unknown-key", "`service_url=here`"),
    ):
        with expect_error(ConfigError, *error):
            run(word)


@pytest.mark.parametrize("words", [[], ["service_url=here"], ["service_url=here", "model.name=mine"]])
@pytest.mark.parametrize("tier", [Tier.SAVED, Tier.USER])
def test_saved_config_is_equal_and_keeps_user_keys(run: Run, words: list[str], tier: Tier) -> None:
    first = run(*words)
    whole = Layer("config.yaml", first.build_saved_config(), tier)
    again = run(whole)
    assert again.tree == first.tree
    assert run(whole, *words).tree == first.tree
    if tier is Tier.USER:
        assert {word.partition("=")[0] for word in words} == again.by_user - {"rllm.backend", "rllm.env.name"}


@pytest.mark.parametrize(
    ("words", "change", "model"),
    [
        ([], {"service_url": "here"}, "small"),
        (["service_url=here"], {"service_url": "http://127.0.0.1:1"}, "large"),
        (["model.name=mine"], {"service_url": "here"}, "mine"),
        (["service_url=here"], {"model": {"name": "mine"}}, "mine"),
    ],
)
def test_change_over_saved_config_reaches_derived_model(
    run: Run, words: list[str], change: dict[str, Any], model: str
) -> None:
    whole = Layer("config.yaml", run(*words).build_saved_config())
    assert run(whole, Layer("command line", change, Tier.COMMAND_LINE)).value(MODEL) == model
    merged: Any = OmegaConf.to_container(OmegaConf.merge(whole.tree, change))
    assert run(Layer("the Python config", merged)).value(MODEL) == model


def test_mixed_keys_have_the_defaults_of_validation() -> None:
    given: list[Any] = []

    def derive(*values: Any) -> str:
        given.append(values)
        return "small"

    of = ("model.rank", "service_timeout", "service_url", "rllm.rollout.n", "model.nothing")
    registry = _registry(DerivedKey(native=MODEL, of=of, derive=derive))
    assert _compose(registry, "rllm.rollout.n=3").value("model.rank") == 32, "the derived name makes it a section"
    assert set(given) == {(8, 30.0, None, 3, None)}


def test_value_without_derived_model_is_a_config_error() -> None:
    registry = _registry(DerivedKey(native=MODEL, of=("service_url",), derive=lambda url: url.upper()))
    with expect_error(ConfigError, "wrong-value", "`model.name`", "`service_url`"):
        _compose(registry)
    with expect_error(ConfigError, "wrong-value", "`service_url`"):
        _compose(registry, "service_url=3")
    with expect_error(ConfigError, "backend-mismatch", "`model.name`", "'large'", DERIVED):
        _compose(_registry(ROW, recipe={"service_url": "here"}))


@pytest.mark.parametrize(
    ("started", "resumed", "problem"),
    [
        (["service_url=here"], ["service_url=here"], ""),
        (["service_url=here", "model.name=mine"], ["service_url=here"], ""),
        (["service_url=here"], ["service_url=there"], "small and is now large (from service_url, by derivation)"),
        (["service_url=here"], ["model.name=mine"], "now mine (from command line)"),
    ],
)
def test_resumed_run_keeps_its_model_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[str], resumed: list[str], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    registry = program_registry(without_environment="guess")
    for entry in (mine := _registry(ROW)).all("backend"):
        registry.add(replace(entry.plugin, capabilities=CAPABLE), distribution=entry.distribution)
    registry.add(mine.get("environment", "guess").plugin, distribution="rllm")

    def compose_over(beneath: Sequence[Layer], words: Sequence[str] = resumed) -> tuple[Composed, Registry]:
        return _compose(registry, *beneath, *words), registry

    first = compose_over([], started)[0]
    directory = run_directory_path(first.config.rllm.trainer)
    directory.mkdir(parents=True)
    save_config(first.build_saved_config(), directory)
    if problem:
        with expect_error(ConfigError, "run-changed", problem):
            plan_resumption(compose_over)
    else:
        assert plan_resumption(compose_over).composed.value(MODEL) == first.value(MODEL)
