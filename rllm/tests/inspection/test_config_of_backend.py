"""``rllm config`` with a backend that has plain values at the top, and derives its model from one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from written_distribution import write_distribution

BACKEND = """
from pydantic import Field
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, DerivedKey
from rllm_core.contracts.plugin import Params
from rllm_core.plugins import hookimpl

class Model(Params):
    name: str = Field("large", description="What is trained.")

class Sections(Params):
    service_url: str | None = Field(None, description="Where the service is.")
    model: Model = Field(default_factory=Model, description="The model.")

def model_of(url):
    return "small" if url == "here" else "large"

@hookimpl
def rllm_backends():
    return [
        BackendPlugin(
            name="remote",
            summary="A backend that is never started.",
            params=Sections,
            load=lambda: Backend,
            derived_keys=(DerivedKey(native="model.name", of=("service_url",), derive=model_of),),
            capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"})),
        )
    ]
"""
WORDS = ("guess", "rllm/backend=remote", "service_url=here")


@pytest.fixture
def config(rllm: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs ``rllm config`` where the backend `remote` is installed."""
    write_distribution(tmp_path, "rllm-remote", BACKEND)

    def run(*words: str) -> Any:
        return rllm("config", *words, RLLM_BLOCK_PLUGINS="rllm-tinker,rllm-verl", COLUMNS="200")

    return run


@pytest.mark.long
def test_show_and_explain_say_what_the_model_follows_from(config: Callable[..., Any]) -> None:
    rows = [line.split(maxsplit=2) for line in config("show", *WORDS, "--origin").stdout.splitlines()]

    assert ["service_url", '"here"', "command line"] in rows
    assert ["model.name", '"small"', "service_url, by derivation"] in rows
    assert '"small" (from service_url, by derivation)' in config("explain", "model.name", *WORDS).stdout
    explained = config("explain", "service_url", *WORDS).stdout
    assert '"here" (from command line)' in explained
    assert "read by   backend remote" in explained


def test_a_key_of_several_backends_names_all_of_them(config: Callable[..., Any]) -> None:
    rows = dict(line.split(maxsplit=1) for line in config("explain", "model.name", "guess").stdout.splitlines()[2:])

    assert [name.strip() for name in rows["backends"].split(",")] == ["local", "remote"]


@pytest.mark.long
def test_what_is_shown_is_valid_and_the_same_when_given_back(config: Callable[..., Any], tmp_path: Path) -> None:
    shown = config("show", *WORDS).stdout
    (tmp_path / "my.yaml").write_text(shown)

    assert config("validate", str(tmp_path / "my.yaml")).returncode == 0
    again = config("show", "--config", str(tmp_path / "my.yaml")).stdout
    assert yaml.safe_load(again) == yaml.safe_load(shown)


def test_the_schema_has_plain_values_at_the_top(config: Callable[..., Any]) -> None:
    assert any(line.startswith("service_url ") for line in config("schema", "--backend", "remote").stdout.splitlines())
    schema = json.loads(config("schema", "--backend", "remote", "--json").stdout)
    assert schema["properties"]["service_url"]["description"] == "Where the service is."
