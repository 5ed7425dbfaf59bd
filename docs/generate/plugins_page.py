"""The page of plugins: those of this repository, and those of others from docs/plugins.toml.

``python docs/generate/plugins_page.py`` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from package_index import INDEX, entries, index
from page_text import cell, table

from rllm_core.plugins.discovery import COMMAND

MOST_NAMES = 10
"""Maximum number of plugins of one kind that a row lists by name."""
HEAD = """# Plugins

<!-- Made by `make docs`; do not edit. -->

`rllm plugins install NAME` adds a package. Choose its plugins by their names in the config. `rllm plugins list` shows
the installed plugins, and `rllm plugins search` all plugins of this page. See also
[find and install plugins](how-to/install-plugins.md), and [write your own](how-to/plugin.md).

## Plugins of others
"""
ADD = """
To list your package, add it to [plugins.toml](plugins.toml) and run `make docs`. It needs a name on the package index,
an open licence, and a public repository in which the contract tests of its kinds pass. We have not read the code of
these packages: a plugin [runs with your rights](how-to/trust-plugins.md).

## Plugins of this repository
"""
NONE = "None yet.\n"


def page(text: str) -> str:
    """The page for an index of other authors' packages."""
    own = index()
    others = [
        (f"[`{each['name']}`]({each['repository']})", each["version"], _kinds(each["offers"]), cell(each["summary"]))
        for each in entries(text, tuple(own))
    ]
    listed = table(("package", "version", "offers", "description"), others) if others else NONE
    rows = [(f"`{name}`", _kinds(entry["offers"]), cell(entry["summary"])) for name, entry in own.items()]
    return HEAD + listed + ADD + table(("package", "offers", "description"), rows)


def _kinds(offers: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(_names(kind, list(names)) for kind, names in offers.items())


def _names(kind: str, names: list[str]) -> str:
    if len(names) > MOST_NAMES and kind != COMMAND:
        return f"[{len(names)} plugins](reference/{kind}.md) of kind {kind}"
    return f"{kind} {', '.join(f'`{name}`' for name in names)}"


if __name__ == "__main__":
    sys.stdout.write(page(INDEX.read_text(encoding="utf-8")))
