"""Every command prints JSON with ``--json``, except commands that print no table, and those that are listed here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from rllm.cli.main import cli, main
from rllm_core import __version__
from rllm_core.plugins.discovery import discover

RUNS = "starts a run or a server, or writes files"
WITHOUT = {
    "config convert": "prints a configuration",
    "config validate": "prints one line",
    "export": RUNS,
    "gateway prune": "prints one line",
    "gateway serve": RUNS,
    "gateway show": "prints a conversation",
    "plugins new": RUNS,
    "record check": "prints one line for each difference",
    "record export": "writes a file of JSON",
    "replay": RUNS,
    "skill": "prints a page",
    "tinker serve": RUNS,
    "view": RUNS,
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


def test_dry_run_as_json_has_plugins_and_data(print_json: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"prompt": "1 + 1?", "completion": "2"}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n")

    printed = print_json("train", "guess", "--dry-run", "rllm.rollout.n=4")

    assert {"kind": "estimator", "name": "grpo", "distribution": "rllm-core", "version": __version__} in printed[
        "plugins"
    ]
    assert "advantages" in [stage["name"] for stage in printed["stages"]]
    assert {"key": "rllm.rollout.n", "value": 4, "origin": "command line"} in printed["values"]
    assert printed["losses"][0]["loss"] == "ppo"
    assert (printed["data"], printed["estimate"], printed["warnings"]) == ([], None, [])
    summary, lengths = print_json("sft", "--data", "train.jsonl", "--dry-run")["data"]
    assert (summary["source"], summary["rows"], summary["columns"]) == (
        "train.jsonl",
        1,
        {"prompt": 1, "completion": 1},
    )
    assert lengths["median"] == lengths["longest"] > 0
    assert main(["train", "guess", "--json"]) == 2


def test_config_as_json_has_all_values_and_origins(print_json: Any) -> None:
    values = print_json("config", "show", "guess", "rllm.rollout.n=4")

    assert {"key": "rllm.rollout.n", "value": 4, "origin": "command line"} in values
    assert {"key": "rllm.backend", "value": "local", "origin": "default"} in values


def test_error_as_json_has_its_code_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["train", "gues", "--dry-run"],
        ["plugins", "list", "estimatr"],
        ["runs", "list", "--no-such-option"],
    ):
        assert main([*words, "--json"]) == 2
        printed = capsys.readouterr()
        error = json.loads(printed.out)["error"]
        assert printed.err.startswith(f"error[{error['code']}]: {error['message']}\nhint: {error['hint']}")
