"""Names in our packages: plugins and commands. The error for an unknown name uses them to suggest a package.

The index is generated from the specs of all our packages: ``make docs``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

COMMAND = "command"
"""The kind under which the index lists commands of ``rllm``, next to the kinds of plugins."""
INDEX = Path(__file__).with_name("first_party.json")


@dataclass(frozen=True)
class Entry:
    """One of our packages other than the core."""

    summary: str
    """A description of the package, in one sentence."""
    offers: Mapping[str, Mapping[str, str]]
    """Kind -> name -> summary."""
    extras: Mapping[str, Mapping[str, str]]
    """Extra -> the dotted keys and values for which a run needs it."""
    on_gpus: tuple[str, ...]
    """Extras that other runs of the package need. A dry run does not need them."""
    without_gpu: str
    """The packages to install instead of these on a machine without a GPU."""
    endings: tuple[str, ...] = ()
    """Suffixes of the files that its datasets read."""


@cache
def read_index() -> Mapping[str, Entry]:
    found = json.loads(INDEX.read_text(encoding="utf-8"))
    lists = ("on_gpus", "endings")
    fields: dict[str, dict[str, Any]] = {
        name: {key: tuple(value) if key in lists else value for key, value in entry.items()}
        for name, entry in found.items()
    }
    return {name: Entry(**given) for name, given in fields.items()}


def find_home_package(kind: str, name: str) -> str | None:
    """Return our package that offers `name`, even if it is not installed."""
    return next((home for home, entry in read_index().items() if name in entry.offers.get(kind, ())), None)


def summaries_elsewhere(kind: str) -> dict[str, str]:
    """Return name -> summary for all plugins of a kind that our packages other than the core offer."""
    return {name: summary for entry in read_index().values() for name, summary in entry.offers.get(kind, {}).items()}
