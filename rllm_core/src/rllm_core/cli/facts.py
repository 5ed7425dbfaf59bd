"""What a plugin's record says about it, in words for people. Its options are for ``rllm_core.schema.describe``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from rllm_core.contracts.backend import DerivedKey, SharedKey
from rllm_core.contracts.plugin import Plugin

_COMMON = {field.name for field in fields(Plugin)}
_IMPLEMENTATIONS = ("load", "open", "sources", "check", "is_remote", "footprint", "fetch_model")
"""How the names of fields begin that give what a plugin does; a listing needs none of it."""


def facts_of(plugin: Plugin[Any]) -> dict[str, str]:
    """What the record says beyond what all kinds say: a level and a scope, what it needs, what it can do, …"""
    return dict(_facts(plugin))


def _facts(record: Any) -> Iterator[tuple[str, str]]:
    for field in fields(record):
        if field.name in _COMMON or field.name.startswith(_IMPLEMENTATIONS):
            continue
        value = getattr(record, field.name)
        value = value() if callable(value) else value
        if value is None or value == ():
            continue
        if is_dataclass(value):
            yield from _facts(value)
        elif not isinstance(value, Mapping):
            yield field.name.replace("_", " "), _words(value)
        elif value:
            yield field.name.replace("_", " "), ", ".join(f"{key}: {_words(inner)}" for key, inner in value.items())


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset | set):
        return ", ".join(sorted(value)) or "nothing"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_words(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, SharedKey):
        return f"{value.native} = {value.rllm}"
    if isinstance(value, DerivedKey):
        return f"{value.native} from {', '.join(value.of)}"
    if isinstance(value, tuple):
        return ", ".join(_words(inner) for inner in value)
    return str(value)
