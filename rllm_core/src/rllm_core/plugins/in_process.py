"""Plugin specs that the running program registered by a call, as notebooks and scripts do. Every registry of this
process contains them."""

from __future__ import annotations

from typing import Any, NamedTuple

from rllm_core.contracts.plugin import Plugin
from rllm_core.errors import PluginError
from rllm_core.plugins.discovery import UnusablePluginError
from rllm_core.plugins.validation import check_record


class _Entry(NamedTuple):
    record: Plugin[Any]
    source: str


_entries: dict[tuple[str, str], _Entry] = {}
"""The registered specs by kind and name."""


def register(record: Plugin[Any], source: str) -> None:
    """Register a plugin spec for all registries that are loaded later.

    Args:
        source: the place where it is written, such as ``my_module.my_function``. A spec with the same name and source
            is replaced, because a notebook cell or a module can run again.

    Raises:
        PluginError: the spec is unusable, or a different source has registered this name.
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
            f"Choose a different name for one of them. If the first is gone, call "
            f"rllm_core.plugins.in_process.forget({record.kind!r}, {record.name!r}) first.",
        )
    _entries[record.kind, record.name] = _Entry(record, source)


def records() -> list[Plugin[Any]]:
    """Return all registered specs in the order of registration."""
    return [entry.record for entry in _entries.values()]


def forget(kind: str, name: str) -> None:
    """Remove a spec, so that registries loaded later do not contain it. An unknown name is ignored."""
    _entries.pop((kind, name), None)
