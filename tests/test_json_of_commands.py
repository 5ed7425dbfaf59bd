"""Every command prints JSON with ``--json``, except commands that print no table, and those that are listed here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest

from rllm.cli.main import cli, main
from rllm_core.plugins.discovery import discover

RUNS = "starts a run or a server, or writes files"
WITHOUT = {
    "config convert": "prints a configuration",
    "config show": "prints YAML",
    "config validate": "prints one line",
    "episode": "prints a conversation",
    "export": RUNS,
    "gateway prune": "prints one line",
    "gateway serve": RUNS,
    "gateway show": "prints a conversation",
    "plugins new": RUNS,
    "prefer": RUNS,
    "record check": "prints one line for each difference",
    "replay": RUNS,
    "sft": RUNS,
    "skill": "prints a page",
    "tinker serve": RUNS,
    "train": RUNS,
    "view": RUNS,
    "why": "prints an explanation",
}


def find_commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands of this repository with their full names."""
    context = click.Context(group)
    foreign = {each.entry_point for each in discover().commands if not each.distribution.startswith("rllm")}
    for name in group.list_commands(context):
        if prefix + name not in foreign:
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from find_commands(command, f"{prefix}{name} ")
            else:
                yield prefix + name, command


def test_commands_without_json_are_known() -> None:
    without = {
        name
        for name, command in find_commands(cli)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == set(WITHOUT)


@pytest.fixture
def print_json(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command with ``--json`` and returns the printed data."""

    def run(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_plugin_as_json_has_its_options(print_json: Any) -> None:
    described = print_json("plugins", "info", "estimator", "grpo")

    assert described["qualified_name"] == "rllm-core/grpo"
    assert described["facts"]["level"] == [["trajectory"]]
    assert "norm_adv_by_std_in_grpo" in [option["name"] for option in described["options"]]


def test_key_as_json_has_its_facts(print_json: Any) -> None:
    assert print_json("config", "explain", "rllm.rollout.n")["type"] == "whole number > 0"
    section = print_json("config", "explain", "rllm.rollout")
    assert "rllm.rollout.n" in [option["name"] for option in section]


def test_findings_as_json_have_a_remedy(print_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLM_ALLOW_PLUGINS", "rllm-absent")

    findings = {each["subject"]: each for each in print_json("plugins", "doctor")}

    assert findings["RLLM_ALLOW_PLUGINS"]["code"] == "unknown-plugin"
    assert findings["RLLM_ALLOW_PLUGINS"]["remedy"]
