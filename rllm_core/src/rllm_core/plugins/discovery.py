"""Discovery of installed plugins and commands from package metadata, and of the packages that could be installed.
Nothing is imported.

The block list and the allow list are applied here, so the code of a blocked plugin never runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from rllm_core.notices import warn_once

ENTRY_POINT_GROUP = "rllm.plugins"
COMMAND_GROUPS = {"rllm.commands": "", "rllm.commands.plugins": "plugins "}
"""Entry-point groups of commands that packages add to ``rllm`` and to ``rllm plugins``, with the prefix on the command
line. The entry point's name is the command, and its value is a click command."""
BLOCK_VARIABLE = "RLLM_BLOCK_PLUGINS"
ALLOW_VARIABLE = "RLLM_ALLOW_PLUGINS"
ALLOW_KEY = "rllm.plugins.allow"
CORE = "rllm-core"
PROGRAM = "rllm"
"""The package with the command line. Its plugins are always used, like the core's plugins."""
CORE_MODULE = "rllm_core.builtin"
IN_PROCESS = "in-process"
"""Package name of plugins that were registered by a call and are not installed."""
COMMAND = "command"
"""The kind of commands in the index of packages."""
INDEX = "package_index.json"
"""A file of the program's package, and a file in the user's cache. It has the fields of `IndexEntry` by package."""


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
    unknown_allows: tuple[tuple[str, str], ...] = ()
    """Names in the allow lists that match no installed package, each after the setting of its list."""


def normalize(distribution: str) -> str:
    """Return a package name in the form used for comparison. ``My_Plugin`` and ``my-plugin`` are the same."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


class EntryPoint(NamedTuple):
    """A line in the metadata of an installed package."""

    directory: str
    """The directory with the metadata of its package."""
    group: str
    name: str
    value: str
    """A module and an attribute: ``rllm_tinker_server.command:tinker``."""

    def load(self) -> object:
        module, _, attribute = self.value.partition("[")[0].partition(":")
        found: object = importlib.import_module(module.strip())
        for name in filter(None, attribute.strip().split(".")):
            found = getattr(found, name)
        return found


def read_entry_points() -> Iterator[EntryPoint]:
    """Yield the entry points of installed packages.

    `importlib.metadata` finds the same ones, but it imports parsers of mail and archives. They take longer than all
    other parts of ``rllm --help``.
    """
    for directory in _metadata_directories():
        group = ""
        for line in map(str.strip, _read(directory, "entry_points.txt").splitlines()):
            if line.startswith("["):
                group = line[1:-1]
            elif line and not line.startswith("#"):
                name, _, value = line.partition("=")
                yield EntryPoint(directory, group, name.strip(), value.strip())


def _metadata_directories() -> Iterator[str]:
    """Yield the metadata directory of each installed package, which is the first one on Python's path."""
    packages: set[str] = set()
    for path in sys.path:
        with suppress(OSError), os.scandir(path or ".") as files:
            for file in files:
                stem, _, suffix = file.name.rpartition(".")
                if suffix in ("dist-info", "egg-info") and (name := normalize(stem.partition("-")[0])) not in packages:
                    packages.add(name)
                    yield file.path


def _read(directory: str, name: str) -> str:
    """Return the text of a file. Empty if it does not exist."""
    try:
        with open(f"{directory}/{name}", encoding="utf-8") as file:  # noqa: PTH123  (a Path takes longer)
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def discover(allow: Collection[str] | None = None, environ: Mapping[str, str] | None = None) -> Discovery:
    """Find all plugins and commands except the core's own.

    A command is blocked or allowed with its package. Its own name has no effect.

    Args:
        allow: the config value ``rllm.plugins.allow``: names of packages to use, or None for all.
        environ: environment variables. ``RLLM_BLOCK_PLUGINS`` is a comma-separated list of names, or ``*`` for all.
            ``RLLM_ALLOW_PLUGINS`` is a comma-separated list of packages. If it is not empty, a plugin must be in both
            lists of allowed packages.
    """
    environ = os.environ if environ is None else environ
    block, of_environ = (_split_names(environ.get(variable, "")) for variable in (BLOCK_VARIABLE, ALLOW_VARIABLE))
    allowed = {ALLOW_VARIABLE: of_environ} if of_environ else {}
    allowed |= {} if allow is None else {ALLOW_KEY: {normalize(name): name for name in allow}}
    describe = cache(_describe)  # most packages offer several
    plugins: list[Candidate] = []
    commands: list[Candidate] = []
    for entry_point in read_entry_points():
        prefix = COMMAND_GROUPS.get(entry_point.group)
        if prefix is None and entry_point.group != ENTRY_POINT_GROUP:
            continue
        package, version, requires = describe(entry_point.directory)
        distribution = package or entry_point.name
        names = [normalize(distribution), *([normalize(entry_point.name)] if prefix is None else ())]
        blocked_by = "" if names[0] == PROGRAM else _blocked_by(names, block, allowed)
        name = (prefix or "") + entry_point.name
        if names[0] != CORE:
            found = Candidate(name, distribution, version, entry_point.load, requires, blocked_by)
            (plugins if prefix is None else commands).append(found)
    plugins.sort(key=_order)
    distributions = {normalize(candidate.distribution) for candidate in (*plugins, *commands)}
    blockable = (distributions | {normalize(plugin.entry_point) for plugin in plugins}) - {PROGRAM}
    return Discovery(
        candidates=tuple(plugin for plugin in plugins if not plugin.blocked_by),
        blocked=tuple(plugin for plugin in plugins if plugin.blocked_by),
        commands=tuple(sorted(commands, key=_order)),
        unknown_blocks=tuple(text for name, text in block.items() if name not in blockable | {"*"}),
        unknown_allows=tuple(
            (setting, text)
            for setting, names in allowed.items()
            for name, text in names.items()
            if name not in distributions | {CORE}
        ),
    )


def allowed_entry_points(group: str, environ: Mapping[str, str] | None = None) -> list[Candidate]:
    """Return the entry points of a group that may be imported, by package name. The lists of `discover` apply.

    Args:
        group: a group that is none of plugins or commands, such as ``rllm.formats``.
        environ: see `discover`.
    """
    environ = os.environ if environ is None else environ
    block, allow = (_split_names(environ.get(variable, "")) for variable in (BLOCK_VARIABLE, ALLOW_VARIABLE))
    found: list[Candidate] = []
    for entry_point in read_entry_points():
        if entry_point.group == group:
            package, version, requires = _describe(entry_point.directory)
            distribution = package or entry_point.name
            if not _blocked_by([normalize(distribution)], block, {ALLOW_VARIABLE: allow} if allow else {}):
                found.append(Candidate(entry_point.name, distribution, version, entry_point.load, requires))
    return sorted(found, key=_order)


def _split_names(text: str) -> dict[str, str]:
    """Return the names of a comma-separated list, by their normalized names."""
    return {normalize(name.strip()): name.strip() for name in text.split(",") if name.strip()}


def _blocked_by(names: Sequence[str], block: Mapping[str, str], allowed: Mapping[str, Collection[str]]) -> str:
    """Return the reason why a plugin is blocked, or an empty string.

    Any of its names can block it. Only the first name, the package's name, can allow it, because a package can give an
    entry point any name. `allowed` has the setting and the names of each list.
    """
    if "*" in block:
        return f"{BLOCK_VARIABLE}=*"
    for name in names:
        if name in block:
            return f"{block[name]!r} in {BLOCK_VARIABLE}"
    return next((f"{setting}, which does not list it" for setting, each in allowed.items() if names[0] not in each), "")


def _describe(directory: str) -> tuple[str, str, tuple[str, ...]]:
    """Return a package's name, version and requirements. Parts that damaged metadata lacks have defaults."""
    text = _read(directory, "METADATA") or _read(directory, "PKG-INFO")
    fields = [line.partition(": ") for line in text.partition("\n\n")[0].splitlines()]
    values = {name: value.strip() for name, _, value in reversed(fields)}
    requires = tuple(value.strip() for name, _, value in fields if name == "Requires-Dist")
    return values.get("Name", ""), values.get("Version", "unknown"), requires


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
    version: str = ""
    """The version with these names. Empty for the packages of this repository."""
    repository: str = ""
    """The address of its source. Empty for the packages of this repository, or if it is unknown."""
    options: str = ""
    """Options of ``rllm plugins install`` for the index that has the package. Empty for the default index."""

    def install_command(self, name: str, verb: str = "install") -> str:
        """Return the command that installs or upgrades the package `name`."""
        return f"rllm plugins {verb} {name} {self.options}".rstrip()


@cache
def read_index() -> Mapping[str, IndexEntry]:
    """Return the packages of this repository in the program's index. Empty if the program is not installed."""
    return {name: entry for name, entry in _read_program_index().items() if not entry.version}


def read_published_packages() -> Mapping[str, IndexEntry]:
    """Return the packages of other authors: in the program's index, and in the file of ``rllm plugins refresh``."""
    own = _read_program_index()
    refreshed = {name: entry for name, entry in read_refreshed_packages().items() if name not in own}
    return {name: entry for name, entry in own.items() if entry.version} | refreshed


@cache
def read_refreshed_packages() -> Mapping[str, IndexEntry]:
    """Return the packages in the file of ``rllm plugins refresh``. If it is damaged, its path is printed."""
    path = refreshed_index_path()
    try:
        return _parse_index(_read(*os.path.split(path)))
    except (ValueError, TypeError, AttributeError):
        warn_once(f"{path} is damaged. Run `rllm plugins refresh` again, or delete it.")
        return {}


def refreshed_index_path() -> str:
    """Return the path of the file that ``rllm plugins refresh`` writes."""
    cache_directory = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  (as in `_read`)
    return f"{cache_directory}/{PROGRAM}/{INDEX}"


@cache
def _read_program_index() -> Mapping[str, IndexEntry]:
    program = importlib.util.find_spec(PROGRAM)
    directories = program.submodule_search_locations if program else None
    return _parse_index(_read(directories[0], INDEX)) if directories else {}


def _parse_index(text: str) -> dict[str, IndexEntry]:
    entries: dict[str, dict[str, Any]] = json.loads(text or "{}")
    return {name: IndexEntry(**entry) for name, entry in entries.items()}


def find_home_package(kind: str, name: str) -> str | None:
    """Return the package of this repository that offers `name`, even if it is not installed."""
    return next((home for home, entry in read_index().items() if name in entry.offers.get(kind, ())), None)


def find_published_packages(kind: str, name: str) -> dict[str, IndexEntry]:
    """Return the packages of other authors that offer `name`."""
    return {home: entry for home, entry in read_published_packages().items() if name in entry.offers.get(kind, ())}


def indexed_summaries(kind: str) -> dict[str, str]:
    """Return name -> summary for all plugins of a kind in the packages of this repository."""
    return {name: summary for entry in read_index().values() for name, summary in entry.offers.get(kind, {}).items()}
