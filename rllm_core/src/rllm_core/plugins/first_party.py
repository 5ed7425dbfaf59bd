"""Names in our packages: plugins and commands. The error for an unknown name uses them to suggest a package.

The index is generated from the specs of all our packages: ``make docs``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
def _index() -> Mapping[str, Entry]:
    found = json.loads(INDEX.read_text(encoding="utf-8"))
    lists = ("on_gpus", "endings")
    fields: dict[str, dict[str, Any]] = {
        name: {key: tuple(value) if key in lists else value for key, value in entry.items()}
        for name, entry in found.items()
    }
    return {name: Entry(**given) for name, given in fields.items()}


def to_install(distribution: str, value: Callable[[str], Any]) -> tuple[tuple[str, ...], str]:
    """Return the extras to install a package with, and the alternative for a machine without a GPU."""
    extras, entry = list_needed_extras(distribution, value), _index().get(distribution)
    if extras or entry is None:
        return extras, ""
    return entry.on_gpus, entry.without_gpu


def find_home_package(kind: str, name: str) -> str | None:
    """Return our package that offers `name`, even if it is not installed."""
    return next((home for home, entry in _index().items() if name in entry.offers.get(kind, ())), None)


def find_reading_package(suffix: str) -> str | None:
    """Return our package that reads files with this suffix, even if it is not installed."""
    return next((home for home, entry in _index().items() if suffix in entry.endings), None)


def list_needed_extras(distribution: str, value: Callable[[str], Any]) -> tuple[str, ...]:
    """Return the extras of a package that a run needs. `value` takes a dotted key and returns its value."""
    if (entry := _index().get(distribution)) is None:
        return ()
    return tuple(
        extra
        for extra, keys in entry.extras.items()
        if all(_without_member(value(key)) == wanted for key, wanted in keys.items())
    )


def _without_member(value: Any) -> Any:
    """Return the name without a family: ``reasoning_gym`` for ``reasoning_gym:chain_sum``."""
    from rllm_core.contracts.chosen import FAMILY  # (`rllm --help` reads the index and must not import pydantic)

    return value.partition(FAMILY)[0] if isinstance(value, str) else value


def first_party_distributions() -> frozenset[str]:
    """Return our packages other than the core, including packages that are not installed."""
    return frozenset(_index())


def names_elsewhere(kind: str) -> list[str]:
    """Return all names of a kind that our packages other than the core offer."""
    return list(summaries_elsewhere(kind))


def summaries_elsewhere(kind: str) -> dict[str, str]:
    """Return name -> summary for all plugins of a kind that our packages other than the core offer."""
    return {name: summary for entry in _index().values() for name, summary in entry.offers.get(kind, {}).items()}
