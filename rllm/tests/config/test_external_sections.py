"""Sections of another system: their keys and types are those of the packaged YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from expecting import expect_error
from pydantic import BaseModel, ConfigDict, Field

from rllm.config.compose import Composed, compose
from rllm.config.layers import layers_from_overrides
from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.section import ExternalSection

YAML = """\
# @package _global_
engine:
  rate: 0.1
  steps: 3
  name: fast
  switch: true
  sizes: [1, 2]
  anything: null
  options: {}
  passed_on: {known: 1}
  same_steps: ${engine.steps}
  inner: {deep: 1}
data:
  extra: 1
"""
MARK = ExternalSection(free=frozenset({"engine.passed_on"}), optional=frozenset({"engine.inner.left_out"}))


class Extras(BaseModel):
    model_config = ConfigDict(extra="allow")


class Sections(Params):
    engine: Annotated[dict[str, Any], MARK] = Field(default_factory=dict, description="Of another system.")
    data: Annotated[Extras, MARK] = Field(default_factory=Extras, description="Next to the core's keys.")


@pytest.fixture
def run(registry: Registry, add_backend: Callable[..., Path]) -> Callable[..., Composed]:
    add_backend("far", YAML, load_params=lambda: Sections)
    return lambda *words: compose(registry, layers_from_overrides(["rllm.backend=far", *words]))


def test_values_of_the_packaged_types_are_taken(run: Callable[..., Composed]) -> None:
    words = ["engine.rate=1", "engine.steps=5", "engine.name=slow", "engine.switch=false", "engine.sizes=[]"]
    composed = run(*words, "engine.name=[a, b]", "data.extra=2", "data.train_batch_size=3", "engine.steps=null")
    assert composed.value("engine.rate") == 1
    assert composed.backend_config.model_dump()["data"] == {"extra": 2}


def test_empty_or_free_packaged_section_takes_anything(run: Callable[..., Composed]) -> None:
    run("engine.options.new=1", "engine.anything={a: 1}", "engine.passed_on.new=x", "engine.inner.left_out=1")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("engine.step=1", ("unknown-key", "`step`", "`engine.step`")),
        ("engine.inner.depe=1", ("unknown-key", "`engine.inner.deep=1`")),
        ("engine.inner.left_uot=1", ("unknown-key", "`engine.inner.left_out=1`")),
        ("data.extras=1", ("unknown-key", "`data.extra=1`")),
        ("engine.steps=1.5", ("wrong-value", "`engine.steps`", "1.5")),
        ("engine.rate=x", ("wrong-value", "`engine.rate`", '"x"')),
        ("engine.switch=1", ("wrong-value", "`engine.switch`")),
        ("engine.name=1", ("wrong-value", "`engine.name`")),
        ("engine.options=1", ("wrong-value", "`engine.options`")),
        ("engine=1", ("wrong-value", "`engine`")),
        ("engine.steps=many", ("wrong-value", "`engine.steps`", '"many"')),
    ],
)
def test_unknown_key_or_other_type_is_error(run: Callable[..., Composed], word: str, message: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *message):
        run(word)
