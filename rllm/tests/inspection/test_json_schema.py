"""The JSON schema that editors check configuration files with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from rllm.config.compose import compose
from rllm.config.keys import known_keys
from rllm.config.layers import layer_from_file, layers_from_overrides
from rllm.config.saved_config import read_config, save_config
from rllm.inspection.describe import editor_schema
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
from rllm_core.contracts.params import Params
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig


class DataSection(Params):
    """Of the same name as the core's."""

    shuffle: bool = Field(True, description="Whether to shuffle.")
    packing: Literal["none", "greedy"] = Field("none", description="How rows are packed.")


class ModelSection(Params):
    name: str = Field(description="Model; must be given.")
    cache: Path = Field(Path("cache"), description="Where weights are kept.")


class Sections(Params):
    data: DataSection = Field(default_factory=DataSection, description="Keys added to the core's section.")
    model: ModelSection = Field(description="What is trained.")
    service_url: str | None = Field(None, description="A plain value at the top.")


SCHEMA = editor_schema(Sections)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _at(path: tuple[str, ...]) -> dict[str, Any] | None:
    """What the schema says about a key."""
    node = SCHEMA
    for part in path:
        if part not in node.get("properties", {}):
            return None
        node = _resolved(node["properties"][part])
    return node


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "properties" in node and isinstance(node["properties"], dict) and "type" in node:
            yield node
        for inner in node.values():
            yield from _objects(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _objects(inner)


def test_schema_has_keys_of_core_and_backend() -> None:
    assert [path for model in (RunConfig, Sections) for path in known_keys(model) if _at(path) is None] == []


def test_merged_section_has_the_keys_of_both() -> None:
    data = _at(("data",))
    assert data is not None
    assert {"train_batch_size", "max_prompt_length", "shuffle", "packing"} <= data["properties"].keys()
    assert data["description"] == "Tasks, batches and lengths."
    assert data["properties"]["packing"]["enum"] == ["none", "greedy"]


def test_unknown_keys_are_refused_in_every_section() -> None:
    sections = list(_objects(SCHEMA))
    assert len(sections) > 20
    assert [section for section in sections if section.get("additionalProperties") is not False] == []

    assert [section for section in _objects(SCHEMA) if "required" in section] == []


def test_limits_and_choices_are_said() -> None:
    rollouts, aggregation = _at(("rllm", "rollout", "n")), _at(("rllm", "algorithm", "loss_agg_mode"))
    assert rollouts is not None
    assert (rollouts["type"], rollouts["exclusiveMinimum"]) == ("integer", 0)
    assert aggregation is not None
    assert "token-mean" in aggregation["enum"]


@pytest.fixture
def valid() -> Callable[[Any], bool]:
    """Whether the schema accepts a configuration, by the package `jsonschema`."""
    validators = pytest.importorskip("jsonschema.validators")
    validator = validators.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    return lambda config: bool(validator.is_valid(config))


@pytest.mark.parametrize(
    "words",
    [
        ["rllm.env.name=guess", "rllm.trainer.logger=[console,{name: tensorboard}]", "rllm.trainer.total_batches=7"],
        ["rllm.algorithm.estimator_map={solver: {name: rloo}}", "rllm.pipeline.stages=[generate]", "model.name=big"],
    ],
)
def test_a_saved_configuration_is_valid(valid: Callable[[Any], bool], tmp_path: Path, words: list[str]) -> None:
    registry = Registry.load(environ={})
    registry.add(_backend(tmp_path))
    save_config(compose(registry, layers_from_overrides(["rllm.backend=far", *words])).build_saved_config(), tmp_path)
    assert valid(read_config(tmp_path))
    assert valid(layer_from_file(tmp_path / "config.yaml").tree)


def _backend(directory: Path) -> BackendPlugin[Sections]:
    """The backend `far` with the keys of `Sections`."""
    file = directory / "rllm" / "backend" / "far.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nmodel: {name: tiny}\n")
    return BackendPlugin(
        name="far",
        summary="A backend that is never started.",
        load_params=lambda: Sections,
        load=lambda: Backend,
        config_yaml=lambda: file,
        capabilities=Capabilities(),
    )


@pytest.mark.parametrize(
    "config",
    [
        {"rllm": {"algorithm": {"entropy": {"coef": 1}}}},
        {"data": {"packing": "best"}},
        {"rllm": {"trainer": {"total_batches": -2}}},
        {"model": 5},
    ],
)
def test_what_composing_refuses_is_not_valid(valid: Callable[[Any], bool], config: Any) -> None:
    assert not valid(config)
    assert valid({})
