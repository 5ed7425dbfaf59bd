"""Where our own plugins and commands live, so that "unknown name" can say what to install.

The index is made from the records of all our distributions: ``make docs``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

COMMAND = "command"
"""Stands beside the kinds of plugins for commands of ``rllm``."""
INDEX = Path(__file__).with_name("first_party.json")


@dataclass(frozen=True)
class Entry:
    """One of our distributions outside the core."""

    summary: str
    """What it is, in a sentence."""
    offers: Mapping[str, Mapping[str, str]]
    """Kind -> name -> summary."""
    extras: Mapping[str, Mapping[str, str]]
    """Extra -> the dotted keys and their values that make a run need it."""
    on_gpus: tuple[str, ...]
    """Extras of its other runs. A dry run does without."""
    without_gpu: str
    """What to install instead of these on a machine without a GPU."""
    endings: tuple[str, ...] = ()
    """Of files that its datasets read."""


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
    """The extras to install a distribution with, and what to write instead on a machine without a GPU."""
    extras, entry = extras_of(distribution, value), _index().get(distribution)
    if extras or entry is None:
        return extras, ""
    return entry.on_gpus, entry.without_gpu


def home_of(kind: str, name: str) -> str | None:
    """The distribution of ours that offers `name`, whether or not it is installed."""
    return next((home for home, entry in _index().items() if name in entry.offers.get(kind, ())), None)


def reader_of(ending: str) -> str | None:
    """The distribution of ours that reads files of an ending, whether or not it is installed."""
    return next((home for home, entry in _index().items() if ending in entry.endings), None)


def extras_of(distribution: str, value: Callable[[str], Any]) -> tuple[str, ...]:
    """The extras of a distribution that a run needs; `value` gives that of a dotted key."""
    if (entry := _index().get(distribution)) is None:
        return ()
    return tuple(
        extra
        for extra, keys in entry.extras.items()
        if all(_without_member(value(key)) == wanted for key, wanted in keys.items())
    )


def _without_member(value: Any) -> Any:
    """``reasoning_gym:chain_sum`` is the plugin ``reasoning_gym`` with one of its members."""
    from rllm_core.contracts.chosen import FAMILY  # (`rllm --help` reads the index and does without pydantic)

    return value.partition(FAMILY)[0] if isinstance(value, str) else value


def first_party_distributions() -> frozenset[str]:
    """Our distributions outside the core, whether or not they are installed."""
    return frozenset(_index())


def elsewhere(installed: Collection[str], kinds: Collection[str] = ()) -> dict[str, Entry]:
    """Our distributions that are not installed, by name.

    Args:
        installed: names of distributions.
        kinds: keeps what offers one of them, and of it what is of these kinds; empty keeps everything.
    """
    found = {}
    for name, entry in _index().items():
        offers = {kind: names for kind, names in entry.offers.items() if not kinds or kind in kinds}
        if name not in installed and offers:
            found[name] = replace(entry, offers=offers)
    return found


def names_elsewhere(kind: str) -> list[str]:
    """All names of a kind that our distributions outside the core offer."""
    return list(summaries_elsewhere(kind))


def summaries_elsewhere(kind: str) -> dict[str, str]:
    """Name -> summary, of all that our distributions outside the core offer of a kind."""
    return {name: summary for entry in _index().values() for name, summary in entry.offers.get(kind, {}).items()}
