"""A backend and an environment for these tests, in their own registry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program_registry import program_registry
from pydantic import Field

from rllm.config.compose import Composed, compose
from rllm.config.layers import Layer, layer_from_keys, layers_from_overrides
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, DerivedKey, SharedKey
from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_core.contracts.params import Params
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS
from rllm_core.schema.section import Choice

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
    lora_rank: int = Field(0, description="Rank of adapters; 0 means none.")


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
            load_params=lambda params=params: params,
            load=_no_backend,
            config_yaml=(lambda: backend_yaml) if name == "local" else None,
            capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"})),
        )
        registry.add(record, distribution="rllm-local")
    guess = EnvironmentPlugin(
        name="guess",
        summary="An environment that is never loaded.",
        load=_no_environment,
        defaults=environment["defaults"],
        recipes=environment["recipes"],
    )
    registry.add(guess, distribution="rllm")
    return registry


@pytest.fixture
def add_backend(registry: Registry, tmp_path: Path) -> Callable[..., Path]:
    """Add a backend whose file contains `text`. Return its own directory. `fields` are fields of its plugin spec."""

    def add(name: str, text: str, *, distribution: str = "", **fields: Any) -> Path:
        directory = tmp_path / f"of_{distribution}_{name}"
        file = directory / "rllm" / "backend" / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        given = {
            "name": name,
            "summary": "A backend that is never loaded.",
            "load_params": lambda: LocalSections,
            "load": _no_backend,
            "config_yaml": lambda: file,
            "capabilities": Capabilities(),
        }
        registry.add(BackendPlugin(**given | fields), distribution=distribution or f"rllm-{name}")
        return directory

    return add


@pytest.fixture
def installed(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The same plugins and the core's, taken for what is installed on this machine."""
    everything = program_registry(without_environment="guess")
    for kind in KINDS:
        for entry in registry.all(kind):
            everything.add(entry.plugin, distribution=entry.distribution)
    monkeypatch.setattr(Registry, "load", lambda **_: everything)
    return everything


FOREIGN_YAML = """\
# @package _global_
rllm: {backend: foreign}
actor:
  kl_loss_coef: 0.001
  clip_ratio: 0.2
  clip_ratio_low: ${actor.clip_ratio}
  clip_ratio_high: 0.28
  warmup: 0.1
  mini_batch_size: ???
trainer:
  total_epochs: 30
  total_training_steps: null
"""


class ActorSection(Params):
    kl_loss_coef: float = Field(0.001, description="Weight of the KL divergence.")
    clip_ratio: float = Field(0.2, gt=0, description="Clipping range.")
    clip_ratio_low: float = Field(0.2, gt=0, description="Its lower half.")
    clip_ratio_high: float = Field(0.2, gt=0, description="Its upper half.")
    warmup: float = Field(0.0, description="Share of warm-up steps.")
    mini_batch_size: int = Field(description="Rows per optimizer step.")


class ForeignTrainerSection(Params):
    total_epochs: int = Field(description="Passes over the tasks.")
    total_training_steps: int | None = Field(None, description="Steps; null means as many as the epochs give.")


class ForeignSections(Params):
    actor: ActorSection = Field(description="What is trained.")
    trainer: ForeignTrainerSection = Field(description="For how long.")


@pytest.fixture(scope="session")
def table() -> tuple[SharedKey, ...]:
    """Shared keys in the spirit of verl's: plain rows, another spelling, two paths for one key, and a fallback."""
    high = SharedKey(
        native="actor.clip_ratio_high", rllm="rllm.algorithm.eps_clip_high", while_null="rllm.algorithm.eps_clip"
    )
    steps = SharedKey(native="trainer.total_training_steps", rllm="rllm.trainer.total_batches", spelled=((-1, None),))
    return (
        high,
        SharedKey(native="actor.clip_ratio", rllm="rllm.algorithm.eps_clip"),
        SharedKey(native="actor.kl_loss_coef", rllm="rllm.algorithm.kl_beta"),
        SharedKey(native="actor.clip_ratio_low", rllm="rllm.algorithm.eps_clip"),
        SharedKey(native="actor.warmup", rllm="rllm.algorithm.warmup_steps_ratio", deprecated=False),
        SharedKey(native="trainer.total_epochs", rllm="rllm.trainer.total_epochs"),
        steps,
    )


@pytest.fixture(scope="session")
def derived() -> tuple[DerivedKey, ...]:
    of = ("data.train_batch_size", "rllm.rollout.n")
    return (DerivedKey(native="actor.mini_batch_size", of=of, derive=lambda batch, n: batch * n // 4),)


@pytest.fixture(scope="session")
def run_foreign(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[SharedKey, ...], derived: tuple[DerivedKey, ...]
) -> Callable[..., Composed]:
    """Composes command-line words and layers for a backend that shares keys with the core."""
    file = tmp_path_factory.mktemp("foreign") / "rllm" / "backend" / "foreign.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(FOREIGN_YAML)
    registry = Registry()
    record = BackendPlugin(
        name="foreign",
        summary="A backend with its own configuration.",
        load_params=lambda: ForeignSections,
        load=_no_backend,
        config_yaml=lambda: file,
        shared_keys=table,
        derived_keys=derived,
        capabilities=Capabilities(),
    )
    registry.add(record, distribution="rllm-foreign")
    chosen = layer_from_keys({"rllm.backend": "foreign"}, "my.yaml")

    def run(*given: str | Layer) -> Composed:
        layers = [layers_from_overrides([each])[0] if isinstance(each, str) else each for each in given]
        return compose(registry, [chosen, *layers])

    return run


@pytest.fixture
def composed(registry: Registry) -> Callable[..., Composed]:
    """Composes user layers given as trees or layers; a tree counts as coming from `my.yaml`."""

    def run(*layers: Layer | dict[str, Any]) -> Composed:
        return compose(registry, [layer if isinstance(layer, Layer) else Layer("my.yaml", layer) for layer in layers])

    return run
