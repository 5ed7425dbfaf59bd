"""The page of plugins: those of this repository, and those of others from docs/plugins.toml.

``python docs/generate/plugins_page.py`` prints it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from package_index import index
from page_text import cell, table

from rllm_core.contracts.plugin import API_VERSION
from rllm_core.plugins.discovery import COMMAND
from rllm_core.plugins.specs import KINDS

INDEX = Path(__file__).parents[1] / "plugins.toml"
FIELDS = {"name": str, "kinds": list, "summary": str, "repository": str, "api": int}
LONGEST = 100
MOST_NAMES = 10
"""Maximum number of plugins of one kind that a row lists by name."""
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
HEAD = """# Plugins

<!-- Made by `make docs`; do not edit. -->

`pip install NAME` adds a plugin. Choose it by its name in the config. `rllm plugins list` shows the installed plugins.
[Write your own](how-to/plugin.md).

## Plugins of others
"""
ADD = """
To list your plugin, add it to [plugins.toml](plugins.toml) and run `make docs`. It needs a name on the package index,
an open licence, and a public repository in which the contract tests of its kinds pass. We have not read the code of
these plugins: a plugin runs with your rights.

## Plugins of this repository
"""
NONE = "None yet.\n"


class EntryError(ValueError):
    """An entry of the index is wrong; the message says which, and what."""


def entries(text: str, ours: Sequence[str] = ()) -> list[Mapping[str, Any]]:
    """The plugins of an index.

    Args:
        text: TOML.
        ours: names that nobody else may have.

    Raises:
        EntryError: an entry lacks something, or has a value that is none.
    """
    found: list[Mapping[str, Any]] = tomllib.loads(text).get("plugin", [])
    for entry in found:
        _check(entry, ours)
    names = [entry["name"] for entry in found]
    if names != sorted(set(names)):
        raise EntryError(f"names are unique and in the order of the alphabet: {', '.join(sorted(set(names)))}")
    return found


def page(text: str) -> str:
    """The page for an index."""
    own = index()
    others = [
        (f"[`{each['name']}`]({each['repository']})", ", ".join(each["kinds"]), cell(each["summary"]), str(each["api"]))
        for each in entries(text, tuple(own))
    ]
    listed = table(("package", "kinds", "description", "API"), others) if others else NONE
    rows = [(f"`{name}`", _kinds(entry["offers"]), cell(entry["summary"])) for name, entry in own.items()]
    return HEAD + listed + ADD + table(("package", "offers", "description"), rows)


def _check(entry: Mapping[str, Any], ours: Sequence[str]) -> None:
    name = entry.get("name")
    for field, kind in FIELDS.items():
        if not isinstance(entry.get(field), kind):
            raise EntryError(f"{name}: `{field}` must be given, as in the example of docs/plugins.toml")
    if unknown := set(entry) - set(FIELDS):
        raise EntryError(f"{name}: there is no field {', '.join(sorted(unknown))}")
    problems = {
        "name": not NAME.fullmatch(entry["name"]) or entry["name"] in ours,
        "kinds": not entry["kinds"] or not set(entry["kinds"]) <= {*KINDS, COMMAND},
        "summary": len(entry["summary"]) > LONGEST or not entry["summary"].endswith("."),
        "repository": not entry["repository"].startswith("https://"),
        "api": not 1 <= entry["api"] <= API_VERSION,
    }
    if wrong := [field for field, is_wrong in problems.items() if is_wrong]:
        raise EntryError(f"{name}: `{wrong[0]}` is {entry[wrong[0]]!r}")


def _kinds(offers: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(_names(kind, list(names)) for kind, names in offers.items())


def _names(kind: str, names: list[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"[{len(names)} plugins](reference/{kind}.md) of kind {kind}"
    return f"{kind} {', '.join(f'`{name}`' for name in names)}"


if __name__ == "__main__":
    sys.stdout.write(page(INDEX.read_text(encoding="utf-8")))
