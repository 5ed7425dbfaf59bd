"""Loading of an installed plugin: returns its checked specs, or the reason why it is unusable."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import pluggy

from rllm_core.contracts.plugin import API_VERSION, Plugin
from rllm_core.notices import one_line
from rllm_core.plugins import specs
from rllm_core.plugins.discovery import CORE, Candidate, UnusablePluginError
from rllm_core.plugins.kinds import KINDS
from rllm_core.plugins.markers import PROJECT
from rllm_core.plugins.requirements import check_core_version, upgrade
from rllm_core.plugins.validation import check_record

_KIND_OF_HOOK = {kind.hook: name for name, kind in KINDS.items()}


def new_manager() -> pluggy.PluginManager:
    """Return a plugin manager with the hooks of ``specs`` and no plugin."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    return manager


def load_records(manager: pluggy.PluginManager, candidate: Candidate) -> list[Plugin[Any]]:
    """Import a plugin, register it and return its specs. If this raises an exception, the plugin is not registered."""
    check_core_version(candidate)
    plugin = candidate.load()
    _check_api_version(plugin, candidate)
    _check_hook_names(plugin)
    name = f"{candidate.distribution}:{candidate.entry_point}"
    if manager.is_registered(plugin):
        raise UnusablePluginError(f"its module is already registered as {manager.get_name(plugin)}")
    try:
        manager.register(plugin, name)
        return _collect(manager, plugin)
    except BaseException:
        manager.unregister(name=name)
        raise


def describe_failure(error: BaseException) -> str:
    """Return the reason why loading failed, in one line without a full stop."""
    text = str(error) if isinstance(error, UnusablePluginError) else f"{type(error).__name__}: {error}"
    return one_line(text).rstrip(" :.")


def _check_api_version(plugin: object, candidate: Candidate) -> None:
    required = str(getattr(plugin, "requires_api", API_VERSION))
    major = required.partition(".")[0]
    if major == str(API_VERSION):
        return
    newer = major.isdecimal() and int(major) > API_VERSION
    raise UnusablePluginError(
        f"it is written for version {required} of the plugin interface; this {CORE} has version {API_VERSION}",
        f"pip install --upgrade {CORE}" if newer else upgrade(candidate),
    )


def _check_hook_names(plugin: object) -> None:
    """Reject functions that were meant as hooks and would never be called.

    pluggy's own `check_pending` checks all plugins at once. This check also names the plugin and the intended hook.
    """
    found = False
    for name in dir(plugin):
        function = inspect.getattr_static(plugin, name, None)
        function = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        if not inspect.isroutine(function):
            continue
        mark = getattr(function, f"{PROJECT}_impl", None)
        if mark is None:
            if name.startswith("rllm_") and (hook := _nearest(name, cutoff=0.85)):
                meant = "" if hook == name else f" (and is {hook} meant?)"
                raise UnusablePluginError(
                    f"function {name} is not marked @hookimpl, so it would never be called{meant}"
                )
            continue
        hook_name = mark.get("specname") or name
        if hook_name not in _KIND_OF_HOOK:
            nearest = _nearest(hook_name, cutoff=0.6)
            advice = f"did you mean {nearest}?" if nearest else f"hooks are {', '.join(_KIND_OF_HOOK)}"
            raise UnusablePluginError(f"hook {hook_name} does not exist; {advice}")
        if mark.get("wrapper") or mark.get("hookwrapper"):
            raise UnusablePluginError(f"{hook_name} is a wrapper; hooks of rllm must return plugin specs")
        found = True
    if not found:
        raise UnusablePluginError("it offers no plugins: none of its functions is marked @hookimpl")


def _nearest(name: str, cutoff: float) -> str | None:
    return next(iter(difflib.get_close_matches(name, _KIND_OF_HOOK, n=1, cutoff=cutoff)), None)


def _collect(manager: pluggy.PluginManager, plugin: object) -> list[Plugin[Any]]:
    """Call each of the plugin's hooks separately and check every spec."""
    records: dict[tuple[str, str], Plugin[Any]] = {}
    for hook, kind in _KIND_OF_HOOK.items():
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            for result in _items(hook, implementation.function()):
                record = check_record(kind, result)
                if (kind, record.name) in records:
                    raise UnusablePluginError(f"{hook} offers {record.name!r} twice")
                records[kind, record.name] = record
    return list(records.values())


def _items(hook: str, returned: object) -> Iterator[object]:
    if not isinstance(returned, Iterable) or isinstance(returned, str):
        raise UnusablePluginError(f"{hook} must return a list of records, not {one_line(repr(returned), 80)}")
    return iter(returned)
