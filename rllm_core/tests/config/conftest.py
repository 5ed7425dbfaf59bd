"""A backend and an environment made for these tests, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from rllm_core.config.compose import Composed, compose
from rllm_core.config.layers import Layer
from rllm_core.config.section import Choice
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.plugins.registry import Registry

BACKEND_YAML = """\
# @package _global_
model:
  name: tiny
training:
  learning_rate: 1e-4
"""


class ModelSection(Params):
    name: str = Field("tiny", description="Model.")
    cache: Path = Field(Path("cache"), description="Where weights are kept.")


class TrainingSection(Params):
    learning_rate: float = Field(1e-4, gt=0, description="Step size.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Of Adam.")
    schedule: Choice = Field("constant", description="How the step size changes.")


class LocalSections(Params):
    model: ModelSection = Field(default_factory=ModelSection, description="What is trained.")
    training: TrainingSection = Field(default_factory=TrainingSection, description="How it is trained.")


class NeedySections(LocalSections):
    endpoint: str = Field(description="Where the service is; has no default.")


def _no_backend() -> type[Backend]:
    raise AssertionError("composing must not load the backend")


def _no_environment() -> Callable[[Any], Environment]:
    raise AssertionError("composing must not load the environment")


@pytest.fixture
def backend_yaml(tmp_path: Path) -> Path:
    file = tmp_path / "rllm" / "backend" / "local.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(BACKEND_YAML)
    return file


@pytest.fixture
def environment() -> dict[str, Any]:
    """Defaults and recipes of the environment `guess`; tests change them before composing."""
    return {
        "defaults": {"rllm.workflow.name": "multi_turn_workflow", "rllm.workflow.workflow_args": {"turns": 7}},
        "recipes": {"local/tiny": {"training.learning_rate": 0.01}, "local/big": {"training.learning_rate": 0.5}},
    }


@pytest.fixture
def registry(backend_yaml: Path, environment: dict[str, Any]) -> Registry:
    registry = Registry()
    for name, params in (("local", LocalSections), ("needy", NeedySections)):
        record = BackendPlugin(
            name=name,
            summary="A backend that is never loaded.",
            params=params,
            load=_no_backend,
            config_yaml=(lambda: backend_yaml) if name == "local" else None,
            capabilities=Capabilities(),
        )
        registry.add(record, distribution="rllm-local")
    guess = EnvironmentPlugin(
        name="guess",
        summary="An environment that is never loaded.",
        params=NoParams,
        load=_no_environment,
        defaults=environment["defaults"],
        recipes=environment["recipes"],
    )
    registry.add(guess, distribution="rllm-envs")
    return registry


@pytest.fixture
def composed(registry: Registry) -> Callable[..., Composed]:
    """Composes user layers given as trees or layers; a tree counts as coming from `my.yaml`."""

    def run(*layers: Layer | dict[str, Any]) -> Composed:
        return compose(registry, [layer if isinstance(layer, Layer) else Layer("my.yaml", layer) for layer in layers])

    return run
