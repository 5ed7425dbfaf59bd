"""Discovery of installed plugins and commands from package metadata, and of the packages that could be installed.
Nothing is imported.

The block list and the allow list are applied here, so the code of a blocked plugin never runs.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
COMMAND = "command"
"""The kind of commands in the index of packages."""
INDEX = "package_index.json"
"""A file of the program's package. For each package, it has the fields of `IndexEntry`."""


class Candidate(NamedTuple):
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


class Discovery(NamedTuple):
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
    names = (os.environ if environ is None else environ).get(BLOCK_VARIABLE, "").split(",")
    block = {normalize(name.strip()): name.strip() for name in names if name.strip()}
    allowed = None if allow is None else {normalize(name): name for name in allow}
    installed = importlib.metadata.entry_points()
    describe = cache(_describe)  # most packages offer several
    plugins = sorted(_candidates(installed.select(group=ENTRY_POINT_GROUP), block, allowed, describe), key=_order)
    commands = [
        candidate._replace(entry_point=prefix + candidate.entry_point)
        for group, prefix in COMMAND_GROUPS.items()
        for candidate in _candidates(installed.select(group=group), block, allowed, describe)
    ]
    distributions = {normalize(candidate.distribution) for candidate in (*plugins, *commands)}
    blockable = (distributions | {normalize(plugin.entry_point) for plugin in plugins}) - {PROGRAM}
    return Discovery(
        candidates=tuple(plugin for plugin in plugins if not plugin.blocked_by),
        blocked=tuple(plugin for plugin in plugins if plugin.blocked_by),
        commands=tuple(sorted(commands, key=_order)),
        unknown_blocks=tuple(text for name, text in block.items() if name not in blockable | {"*"}),
        unknown_allows=tuple(text for name, text in (allowed or {}).items() if name not in distributions | {CORE}),
    )


def _candidates(
    entry_points: Iterable[importlib.metadata.EntryPoint],
    block: Mapping[str, str],
    allowed: Mapping[str, str] | None,
    describe: Callable[[importlib.metadata.Distribution | None], tuple[str, str, tuple[str, ...]]],
) -> Iterator[Candidate]:
    for entry_point in entry_points:
        name, version, requires = describe(entry_point.dist)
        distribution = name or entry_point.name
        if normalize(distribution) == CORE:
            continue
        names = [distribution] if entry_point.group in COMMAND_GROUPS else [distribution, entry_point.name]
        yield Candidate(
            entry_point=entry_point.name,
            distribution=distribution,
            version=version,
            load=entry_point.load,
            requires=requires,
            blocked_by=""
            if normalize(distribution) == PROGRAM
            else _blocked_by([normalize(name) for name in names], block, allowed),
        )


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


def _describe(distribution: importlib.metadata.Distribution | None) -> tuple[str, str, tuple[str, ...]]:
    """Return a package's name, version and requirements. Parts that damaged metadata lacks have defaults."""
    if distribution is None:
        return "", "unknown", ()
    # `Distribution.metadata` also parses the description, which takes longer than all other parts of `rllm --help`.
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    fields = [line.partition(": ") for line in text.partition("\n\n")[0].splitlines()]
    values = {name: value.strip() for name, _, value in reversed(fields)}
    requires = [value.strip() for name, _, value in fields if name == "Requires-Dist"] or distribution.requires or ()
    return values.get("Name", ""), values.get("Version", "unknown"), tuple(requires)


def _order(candidate: Candidate) -> tuple[str, str]:
    return normalize(candidate.distribution), candidate.entry_point


class UnusablePluginError(Exception):
    """A plugin is unusable. The message is the reason in one line. `remedy` is the fix, empty if it is unknown."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class IndexEntry(NamedTuple):
    """A package in the index of packages. It may not be installed."""

    summary: str
    """A description of the package, in one sentence."""
    offers: Mapping[str, Mapping[str, str]]
    """Kind -> name -> summary."""
    extras: Mapping[str, Mapping[str, str]]
    """Extra -> the dotted keys and values for which a run needs it."""
    on_gpus: Sequence[str]
    """Extras that other runs of the package need. A dry run does not need them."""
    without_gpu: str
    """The packages to install instead of these on a machine without a GPU."""
    endings: Sequence[str] = ()
    """Suffixes of the files that its datasets read."""


@cache
def read_index() -> Mapping[str, IndexEntry]:
    """Return the program's index of packages. It is empty if the program is not installed."""
    program = importlib.util.find_spec(PROGRAM)
    directories = program.submodule_search_locations if program else None
    if not directories:
        return {}
    entries: dict[str, dict[str, Any]] = json.loads(Path(directories[0], INDEX).read_text(encoding="utf-8"))
    return {name: IndexEntry(**entry) for name, entry in entries.items()}


def find_home_package(kind: str, name: str) -> str | None:
    """Return the package of the index that offers `name`, even if it is not installed."""
    return next((home for home, entry in read_index().items() if name in entry.offers.get(kind, ())), None)


def indexed_summaries(kind: str) -> dict[str, str]:
    """Return name -> summary for all plugins of a kind in the index."""
    return {name: summary for entry in read_index().values() for name, summary in entry.offers.get(kind, {}).items()}
