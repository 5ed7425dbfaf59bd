"""Discovery of installed plugins and commands from package metadata. Nothing is imported.

The block list and the allow list are applied here, so the code of a blocked plugin never runs.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

ENTRY_POINT_GROUP = "rllm.plugins"
COMMAND_GROUPS = {"rllm.commands": "", "rllm.commands.plugins": "plugins "}
"""Entry-point groups of commands that packages add to ``rllm`` and to ``rllm plugins``, with the prefix on the command
line. The entry point's name is the command, and its value is a click command."""
BLOCK_VARIABLE = "RLLM_BLOCK_PLUGINS"
CORE = "rllm-core"
PROGRAM = "rllm"
"""The package with the command line. Its plugins are always used, like the core's plugins."""
CORE_MODULE = "rllm_core.builtin"
IN_PROCESS = "in-process"
"""Package name of plugins that were registered by a call and are not installed."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An installed plugin or command that has not been imported yet."""

    entry_point: str
    """Name of the entry point. For a plugin it should equal `distribution`. For a command it is the full command:
    ``plugins new``."""
    distribution: str
    version: str
    load: Callable[[], object]
    """Imports the plugin or the command and returns it."""
    requires: tuple[str, ...] = ()
    """Requirements of its package, as in the metadata: ``rllm-core<0.2,>=0.1``."""
    blocked_by: str = ""
    """The reason why it must not be imported, for display. Empty if it may be imported."""


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """The result of one scan, sorted by package name."""

    candidates: tuple[Candidate, ...] = ()
    """Plugins to import."""
    blocked: tuple[Candidate, ...] = ()
    """Installed plugins that must not be imported."""
    commands: tuple[Candidate, ...] = ()
    """Commands of plugins, including commands that must not be imported."""
    unknown_blocks: tuple[str, ...] = ()
    """Names in the block list that match no installed plugin or package."""
    unknown_allows: tuple[str, ...] = ()
    """Names in the allow list that match no installed package."""

    def distributions(self) -> frozenset[str]:
        """Return the normalized names of packages that offer a plugin or a command, including blocked packages."""
        return frozenset(normalize(each.distribution) for each in (*self.candidates, *self.blocked, *self.commands))


def normalize(distribution: str) -> str:
    """Return a package name in the form used for comparison. ``My_Plugin`` and ``my-plugin`` are the same."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def core_version() -> str:
    return importlib.metadata.version(CORE)


def core_candidate() -> Candidate:
    """Return the core's own plugins, which come first and cannot be blocked."""
    return Candidate(
        entry_point=CORE,
        distribution=CORE,
        version=core_version(),
        load=lambda: importlib.import_module(CORE_MODULE),
    )


def discover(allow: Collection[str] | None = None, environ: Mapping[str, str] | None = None) -> Discovery:
    """Find all plugins and commands except the core's own.

    A command is blocked or allowed with its package. Its own name has no effect.

    Args:
        allow: the config value ``rllm.plugins.allow``: names of packages to use, or None for all.
        environ: environment variables. ``RLLM_BLOCK_PLUGINS`` is a comma-separated list of names, or ``*`` for all.
    """
    block = _names((os.environ if environ is None else environ).get(BLOCK_VARIABLE, ""))
    allowed = None if allow is None else {normalize(name): name for name in allow}
    installed = importlib.metadata.entry_points()
    describe = cache(_describe)  # parsing metadata is the slowest part, and most packages offer several
    plugins = list(_candidates(installed.select(group=ENTRY_POINT_GROUP), block, allowed, describe))
    commands = [
        replace(candidate, entry_point=prefix + candidate.entry_point)
        for group, prefix in COMMAND_GROUPS.items()
        for candidate in _candidates(installed.select(group=group), block, allowed, describe)
    ]
    distributions = {normalize(candidate.distribution) for candidate in (*plugins, *commands)}
    blockable = (distributions | {normalize(plugin.entry_point) for plugin in plugins}) - {PROGRAM}
    return Discovery(
        candidates=tuple(sorted((plugin for plugin in plugins if not plugin.blocked_by), key=_order)),
        blocked=tuple(sorted((plugin for plugin in plugins if plugin.blocked_by), key=_order)),
        commands=tuple(sorted(commands, key=_order)),
        unknown_blocks=tuple(text for name, text in block.items() if name not in blockable | {"*"}),
        unknown_allows=tuple(text for name, text in (allowed or {}).items() if name not in distributions | {CORE}),
    )


def _candidates(
    entry_points: Iterable[importlib.metadata.EntryPoint],
    block: Mapping[str, str],
    allowed: Mapping[str, str] | None,
    describe: Callable[[importlib.metadata.Distribution], _Described],
) -> Iterator[Candidate]:
    for entry_point in entry_points:
        found = describe(entry_point.dist) if entry_point.dist else _Described()
        distribution = found.name or entry_point.name
        if normalize(distribution) == CORE:
            continue
        names = [distribution] if entry_point.group in COMMAND_GROUPS else [distribution, entry_point.name]
        yield Candidate(
            entry_point=entry_point.name,
            distribution=distribution,
            version=found.version,
            load=entry_point.load,
            requires=found.requires,
            blocked_by=""
            if normalize(distribution) == PROGRAM
            else _blocked_by([normalize(name) for name in names], block, allowed),
        )


def _names(comma_separated: str) -> dict[str, str]:
    """Return a mapping from normalized names to the names as written."""
    names = (name.strip() for name in comma_separated.split(","))
    return {normalize(name): name for name in names if name}


def _blocked_by(names: Sequence[str], block: Mapping[str, str], allowed: Mapping[str, str] | None) -> str:
    """Return the reason why a plugin is blocked, or an empty string.

    Any of its names can block it. Only the first name, the package's name, can allow it, because a package can give an
    entry point any name.
    """
    if "*" in block:
        return f"{BLOCK_VARIABLE}=*"
    for name in names:
        if name in block:
            return f"{block[name]!r} in {BLOCK_VARIABLE}"
    if allowed is not None and names[0] not in allowed:
        return "rllm.plugins.allow, which does not list it"
    return ""


class _Described(NamedTuple):
    """The metadata of a package. Fields that are missing from damaged metadata have defaults."""

    name: str = ""
    version: str = "unknown"
    requires: tuple[str, ...] = ()


def _describe(distribution: importlib.metadata.Distribution) -> _Described:
    metadata = distribution.metadata
    requires = metadata.get_all("Requires-Dist") or distribution.requires or ()
    # Metadata has no `get` before Python 3.12.
    name = metadata["Name"] if "Name" in metadata else ""  # noqa: SIM401
    version = metadata["Version"] if "Version" in metadata else "unknown"  # noqa: SIM401
    return _Described(name, version, tuple(requires))


def _order(candidate: Candidate) -> tuple[str, str]:
    return normalize(candidate.distribution), candidate.entry_point


class UnusablePluginError(Exception):
    """A plugin is unusable. The message is the reason in one line. `remedy` is the fix, empty if it is unknown."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A plugin that is installed but unusable. None of its specs is registered."""

    name: str
    """Name of the plugin's entry point."""
    distribution: str
    version: str
    reason: str
    """The reason, in one line."""
    remedy: str
    """The fix, such as a pip command. Empty if it is unknown."""
    traceback: str
