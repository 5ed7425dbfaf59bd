"""What the running program registered by a call, as notebooks and scripts do. Every registry of this process has it."""

from __future__ import annotations

from typing import Any, NamedTuple

from rllm_core.contracts.plugin import Plugin
from rllm_core.errors import PluginError
from rllm_core.plugins.unusable import UnusablePluginError
from rllm_core.plugins.validation import check_record


class _Entry(NamedTuple):
    record: Plugin[Any]
    source: str


_entries: dict[tuple[str, str], _Entry] = {}
"""By kind and name."""


def register(record: Plugin[Any], source: str) -> None:
    """Keep a record for the registries that are loaded from here on.

    Args:
        source: where it is written, such as ``my_module.my_function``. A record of the same name and source is
            replaced: a notebook's cell was run again, or a module was imported again.

    Raises:
        PluginError: the record is unusable, or another source has registered this name.
    """
    try:
        check_record(record.kind, record)
    except UnusablePluginError as error:
        raise PluginError("bad-plugin-spec", f"{error}.", f"Change the plugin spec in {source}.") from error
    before = _entries.get((record.kind, record.name))
    if before is not None and before.source != source:
        raise PluginError(
            "duplicate-plugin",
            f"{record.kind} {record.name!r} is registered by {before.source}, and by {source} as well.",
            f"Choose another name for one of them; or, if the first is gone, call "
            f"rllm_core.plugins.in_process.forget({record.kind!r}, {record.name!r}) before.",
        )
    _entries[record.kind, record.name] = _Entry(record, source)


def records() -> list[Plugin[Any]]:
    """All of them, in the order of registration."""
    return [entry.record for entry in _entries.values()]


def forget(kind: str, name: str) -> None:
    """Registries loaded from here on do not have it. Nothing happens when there is none."""
    _entries.pop((kind, name), None)
