"""The schema, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import BaseModel, Field, ValidationError

from rllm.config.keys import choice_keys, known_keys, matches, named_sections
from rllm.config.packaged import DIRECTORY
from rllm.config.paths import leaves
from rllm_core.contracts.params import Params
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.run_sections import TrainerSection
from rllm_core.schema.section import Choice


def _sections(schema: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield schema
    for field in schema.model_fields.values():
        for variant in (field.annotation, *get_args(field.annotation)):
            if isinstance(variant, type) and issubclass(variant, BaseModel):
                yield from _sections(variant)


def test_every_section_refuses_unknown_keys_and_changes() -> None:
    for section in _sections(RunConfig):
        assert section.model_config.get("extra") == "forbid"
        assert section.model_config.get("frozen") is True


def test_known_keys_are_the_keys_of_the_defaults() -> None:
    known = set(known_keys(RunConfig))
    assert {path for path, _ in leaves(RunConfig().model_dump())} <= known
    assert ("rllm", "algorithm") in known


def test_plugin_choices_are_found_by_their_type() -> None:
    patterns = choice_keys(RunConfig)
    for key in ("adv_estimator", "loss_fn", "estimator_map.solver", "loss_map.judge"):
        assert matches(("rllm", "algorithm", *key.split(".")), patterns), key
    for key in ("rllm.workflow", "rllm.env.env_args", "rllm.algorithm.entropy", "rllm.algorithm.estimator_map"):
        assert not matches(tuple(key.split(".")), patterns), key


def test_optional_sections_are_searched_too() -> None:
    class Inner(Params):
        schedule: Choice | None = Field(None, description="A choice.")

    class Outer(Params):
        inner: Inner | None = Field(None, description="A section that may be left out.")

    assert ("inner", "schedule") in known_keys(Outer)
    assert choice_keys(Outer) == {("inner", "schedule")}


def test_sections_with_a_name_and_options_are_found() -> None:
    options = {"agent": "agent_args", "env": "env_args", "workflow": "workflow_args"}
    assert named_sections(RunConfig) == {("rllm", section): key for section, key in options.items()}


def test_importing_does_not_import_omegaconf_or_yaml() -> None:
    modules = [f"rllm.config.{file.stem}" for file in sorted((DIRECTORY.parent / "config").glob("[a-z]*.py"))]
    program = f"import sys, {', '.join(modules)}; print({{'omegaconf', 'yaml', 'hydra'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_run_name_allows_letters_digits_dashes_inner_dots() -> None:
    for key in ("project_name", "experiment_name"):
        for name in ("a", "-", "_a", "run-2.5", "é"):
            assert TrainerSection.model_validate({key: name}).model_dump()[key] == name
        for name in ("", ".", "..", ".a", "a/b", "a b"):
            with pytest.raises(ValidationError, match=key):
                TrainerSection.model_validate({key: name})
