"""The index of packages: ours outside the core, which must all be installed, and others' from docs/plugins.toml."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from rllm.cli.command_groups import PROGRAM
from rllm.cli.plugin_commands import load_command
from rllm_core.contracts.plugin import API_VERSION
from rllm_core.plugins.discovery import COMMAND, CORE
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS, NAME as PLUGIN_NAME

INDEX = Path(__file__).parents[1] / "plugins.toml"
FIELDS = {"name": str, "version": str, "summary": str, "repository": str, "api": int, "offers": dict}
LONGEST = 100
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*([a-z]+[0-9]+)?")
COMMAND_NAME = re.compile(r"[a-z][a-z0-9-]*( [a-z][a-z0-9-]*)?")
OURS = "rllm-"
NOT_OURS = (CORE,)
"""Always installed, like the program. Only the program's commands are in the index, for `rllm --help`."""
EXTRAS = {
    "rllm-envs": {
        "gymnasium": {"rllm.env.name": "gymnasium"},
        "inspect": {"rllm.env.name": "inspect"},
        "nemo-gym": {"rllm.env.name": "nemo_gym"},
        "open-spiel": {"rllm.env.name": "open_spiel"},
        "openenv": {"rllm.env.name": "openenv"},
        "reasoning-gym": {"rllm.env.name": "reasoning_gym"},
        "textarena": {"rllm.env.name": "textarena"},
        "verifiers": {"rllm.env.name": "verifiers"},
    },
    "rllm-tinker": {"local": {"tinker_base_url": "local"}},
    "rllm-verl": {"cpu": {"rllm.profile": "cpu"}},
}
"""Distribution -> extra -> the keys and values that make a run need it."""
ON_GPUS = {
    "rllm-verl": {"on_gpus": ["vllm"], "without_gpu": "'rllm-verl[cpu]', and --profile cpu"},
    "rllm-vllm": {"on_gpus": ["gpu"], "without_gpu": "'rllm-vllm[cpu]'"},
}
NO_GPUS = {"on_gpus": [], "without_gpu": ""}


def index() -> dict[str, Any]:
    """See `rllm_core.plugins.discovery.IndexEntry`."""
    registry = Registry.load(environ={})
    offers: dict[str, dict[str, dict[str, str]]] = {}
    for kind in KINDS:
        for entry in registry.all(kind):
            offers.setdefault(entry.distribution, {}).setdefault(kind, {})[entry.name] = entry.plugin.summary
    for candidate in registry.discovery.commands:
        summary = load_command(candidate).get_short_help_str(limit=100)
        offers.setdefault(candidate.distribution, {}).setdefault(COMMAND, {})[candidate.entry_point] = summary
    endings: dict[str, list[str]] = {}
    for entry in registry.all("dataset"):
        endings.setdefault(entry.distribution, []).extend(sorted(entry.plugin.suffixes))
    return {
        name: {
            "summary": metadata(name)["Summary"],
            "offers": kinds,
            "extras": EXTRAS.get(name, {}),
            **ON_GPUS.get(name, NO_GPUS),
            **({"endings": endings[name]} if name in endings else {}),
        }
        for name, kinds in sorted(offers.items())
        if name.startswith(OURS) and name not in NOT_OURS
    } | {
        PROGRAM: {"summary": metadata(PROGRAM)["Summary"], "offers": {COMMAND: offers[PROGRAM][COMMAND]}}
        | {"extras": {}, **NO_GPUS}
    }


class EntryError(ValueError):
    """An entry of docs/plugins.toml is wrong. The message names the package and the field."""


def entries(text: str, ours: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """The packages of other authors.

    Args:
        text: TOML.
        ours: names that no other package may have.

    Raises:
        EntryError: a field of an entry is missing or invalid.
    """
    found: list[Mapping[str, Any]] = tomllib.loads(text).get("plugin", [])
    for entry in found:
        _check(entry, ours)
    names = [entry["name"] for entry in found]
    if names != sorted(set(names)):
        raise EntryError(f"names are unique and in the order of the alphabet: {', '.join(sorted(set(names)))}")
    return found


def _check(entry: Mapping[str, Any], ours: Sequence[str]) -> None:
    name = entry.get("name")
    for field, kind in FIELDS.items():
        if not isinstance(entry.get(field), kind):
            raise EntryError(f"{name}: `{field}` must be given, as in the example of docs/plugins.toml")
    if unknown := set(entry) - set(FIELDS):
        raise EntryError(f"{name}: there is no field {', '.join(sorted(unknown))}")
    problems = {
        "name": not NAME.fullmatch(entry["name"]) or entry["name"] in ours,
        "version": not VERSION.fullmatch(entry["version"]),
        "offers": not entry["offers"] or not all(_is_offer(*offer) for offer in entry["offers"].items()),
        "summary": not _is_summary(entry["summary"]),
        "repository": not entry["repository"].startswith("https://"),
        "api": not 1 <= entry["api"] <= API_VERSION,
    }
    if wrong := [field for field, is_wrong in problems.items() if is_wrong]:
        raise EntryError(f"{name}: `{wrong[0]}` is {entry[wrong[0]]!r}")


def _is_offer(kind: str, summaries: Any) -> bool:
    names = COMMAND_NAME if kind == COMMAND else PLUGIN_NAME
    return (
        kind in {*KINDS, COMMAND}
        and isinstance(summaries, dict)
        and all(names.fullmatch(name) and _is_summary(summary) for name, summary in summaries.items())
    )


def _is_summary(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST and text.endswith(".")


def published(text: str, ours: Sequence[str]) -> dict[str, Any]:
    """The packages of other authors in the form of the index."""
    return {
        entry["name"]: {"summary": entry["summary"], "offers": entry["offers"], "extras": {}, **NO_GPUS}
        | {"version": entry["version"], "repository": entry["repository"]}
        for entry in entries(text, ours)
    }


def page(text: str) -> str:
    own = index()
    return json.dumps(own | published(text, tuple(own)), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(INDEX.read_text(encoding="utf-8")))
