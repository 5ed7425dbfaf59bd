"""All plugins of this process, by kind and name. Broken plugins are kept separately. Plugins with the same name never
hide each other."""

from __future__ import annotations

import difflib
import inspect
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import pluggy

from rllm_core import __version__
from rllm_core.contracts.chosen import FAMILY, RecordT, Registered
from rllm_core.contracts.plugin import API_VERSION, Plugin
from rllm_core.errors import PluginError, did_you_mean, format_problem
from rllm_core.notices import one_line, warn_once
from rllm_core.plugins.discovery import (
    CORE,
    CORE_MODULE,
    IN_PROCESS,
    Candidate,
    Discovery,
    UnusablePluginError,
    discover,
    find_home_package,
    find_published_packages,
    indexed_summaries,
    normalize,
    read_index,
)
from rllm_core.plugins.requirements import check_core_version
from rllm_core.plugins.specs import HOOKSPECS, KINDS, PROJECT, check_record

_KIND_OF_HOOK = {kind.hook: name for name, kind in KINDS.items()}
_in_process: dict[tuple[str, str], tuple[Plugin[Any], str]] = {}
"""By kind and name: the specs that the running program registered by a call, and the source of each."""


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


@dataclass
class Registry:
    """The plugins of this process. ``Registry.load()`` contains all installed and registered plugins, ``Registry()``
    none.

    A registry is cheap to rebuild in every worker process. Send kinds, qualified names and options there, never
    functions.
    """

    discovery: Discovery = field(default_factory=Discovery)
    broken: list[Broken] = field(default_factory=list)
    _registered: dict[str, list[Registered[Any]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    @classmethod
    def load(cls, allow: Collection[str] | None = None, *, environ: Mapping[str, str] | None = None) -> Registry:
        """Load the core's plugins, all installed plugins that are not blocked, and the plugins that this process
        registered.

        If a plugin fails in any way, its name is printed to standard error and it is added to `broken`.

        Args:
            allow: the config value ``rllm.plugins.allow``.
            environ: environment variables, by default ``os.environ``. See `discover`.
        """
        registry = cls(discovery=discover(allow, environ))
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(HOOKSPECS)
        registry._load(Candidate(CORE, CORE, __version__, lambda: import_module(CORE_MODULE)), manager)
        for candidate in registry.discovery.candidates:
            try:
                registry._load(candidate, manager)
            except (Exception, SystemExit) as error:  # noqa: BLE001  (a broken plugin must not stop the program)
                registry._set_aside(candidate, error)
        for record, _ in _in_process.values():
            registry.add(record)
        return registry

    def all(self, kind: str) -> list[Registered[Any]]:
        """Return all plugins of a kind: the core's first, then sorted by package."""
        return list(self._of_kind(kind))

    def get(self, kind: str, name: str) -> Registered[Any]:
        """Return the plugin ``name`` or ``distribution/name``.

        Raises:
            PluginError: there is not exactly one such plugin.
        """
        matches = self._matches(kind, name)
        if not matches:
            raise self._unknown_name(kind, name)
        if len(matches) > 1:
            offers = " and ".join(f"{match.distribution} {match.version}" for match in matches)
            choices = " or ".join(match.qualified_name for match in matches)
            raise PluginError(
                "ambiguous-plugin", f"{kind} {name!r} is offered by {offers}.", f"Write {choices} to choose one."
            )
        return matches[0]

    def conflicts(self) -> list[list[Registered[Any]]]:
        """Return lists of two or more plugins that have the same kind and name."""
        names = dict.fromkeys((kind, entry.name) for kind in KINDS for entry in self._registered[kind])
        return [matches for matches in (self._matches(*name) for name in names) if len(matches) > 1]

    def add(self, record: RecordT, *, distribution: str = IN_PROCESS, version: str = "0") -> Registered[RecordT]:
        """Register a plugin spec from the running process, as notebooks and tests do. It is checked like an installed
        spec.

        Two specs with the same name and `distribution` are an error here. With different `distribution`, the error
        occurs only if the name is chosen.
        """
        kind = str(getattr(record, "kind", ""))
        if kind not in KINDS:
            classes = ", ".join(each.record.__name__ for each in KINDS.values())
            raise PluginError("bad-plugin-spec", f"{record!r} is not a plugin spec.", f"Plugin specs are {classes}.")
        try:
            check_record(kind, record)
        except UnusablePluginError as error:
            raise PluginError("bad-plugin-spec", str(error)) from error
        _ = record.params  # raises an error that an installed spec raises when it is chosen
        if self._matches(kind, f"{distribution}/{record.name}"):
            raise PluginError(
                "duplicate-plugin",
                f"{kind} {record.name!r} is already registered by {distribution}.",
                "Choose a different name, or pass a different `distribution`.",
            )
        added = Registered(plugin=record, distribution=distribution, version=version)
        self._registered[kind].append(added)
        return added

    def _of_kind(self, kind: str) -> list[Registered[Any]]:
        if kind not in KINDS:
            hint = f"{did_you_mean(kind, KINDS)} Kinds are {', '.join(KINDS)}."
            raise PluginError("unknown-plugin-kind", f"There is no kind of plugin named {kind!r}.", hint.strip())
        return self._registered[kind]

    def _matches(self, kind: str, name: str) -> list[Registered[Any]]:
        distribution, _, bare = name.partition(FAMILY)[0].rpartition("/")
        return [
            entry
            for entry in self._of_kind(kind)
            if entry.name == bare and (not distribution or normalize(entry.distribution) == normalize(distribution))
        ]

    def _load(self, candidate: Candidate, manager: pluggy.PluginManager) -> None:
        """Import a plugin and register its specs. If this raises an exception, none of them is registered."""
        check_core_version(candidate)
        plugin = candidate.load()
        _check_api_version(plugin, candidate)
        _check_hook_names(plugin, manager)
        if manager.is_registered(plugin):
            raise UnusablePluginError(f"its module is already registered as {manager.get_name(plugin)}")
        name = f"{candidate.distribution}:{candidate.entry_point}"
        try:
            manager.register(plugin, name)
            records = _call_hooks(plugin, manager)
        except BaseException:
            manager.unregister(name=name)
            raise
        for record in records:
            for clash in self._matches(record.kind, f"{candidate.distribution}/{record.name}"):
                offer = f"{record.kind} {clash.qualified_name}"
                raise UnusablePluginError(f"{offer} is offered by another entry point too")
        for record in records:
            self._registered[record.kind].append(
                Registered(plugin=record, distribution=candidate.distribution, version=candidate.version)
            )

    def _set_aside(self, candidate: Candidate, error: BaseException) -> None:
        broken = Broken(
            name=candidate.entry_point,
            distribution=candidate.distribution,
            version=candidate.version,
            reason=describe_failure(error),
            remedy=error.remedy if isinstance(error, UnusablePluginError) else "",
            traceback="".join(traceback.format_exception(error)),
        )
        self.broken.append(broken)
        hint = broken.remedy or "`rllm plugins doctor` shows more."
        warn_once(format_problem(f"plugin {broken.name} is broken: {broken.reason}.", hint))

    def _unknown_name(self, kind: str, name: str) -> PluginError:
        """Return the error for a name that no plugin has. It lists the closest names, all names, or the package to
        install."""
        distribution, _, bare = name.partition(FAMILY)[0].rpartition("/")
        if normalize(distribution) == IN_PROCESS:
            return PluginError(
                "plugin-of-other-program",
                f"{kind} {name!r} was a class or function of a Python program, and is not part of this one.",
                "Start the run from that program again, name a module that registers it in "
                f"rllm.plugins.import_modules, or choose another {kind}.",
            )
        indexed, published = find_home_package(kind, bare), find_published_packages(kind, bare)
        home = normalize(distribution or indexed or next(iter(published), ""))
        for plugin in self.broken:
            if normalize(plugin.distribution) == home:
                message = f"{kind} {name!r} cannot be used: plugin {plugin.name} is broken: {plugin.reason}."
                return PluginError("broken-plugin", message, plugin.remedy or "`rllm plugins doctor` shows more.")
        for candidate in self.discovery.blocked:
            if normalize(candidate.distribution) == home:
                message = f"{kind} {name!r} cannot be used: {candidate.distribution} is blocked."
                return PluginError("blocked-plugin", message, f"It is blocked by {candidate.blocked_by}.")
        others = [entry.qualified_name for entry in self._matches(kind, bare)]
        if distribution and others:
            hint = f"It is in {' and '.join(others)}."
            return PluginError("unknown-plugin", f"{distribution} has no {kind} {bare!r}.", hint)
        offered, plural = self._registered[kind], KINDS[kind].hook.removeprefix("rllm_")
        names = sorted({entry.name for entry in offered})
        known = f"Installed {plural}: {', '.join(names)}." if names else f"No {plural} are installed."
        if indexed == home and home not in {normalize(entry.distribution) for entry in offered}:
            return PluginError("plugin-not-installed", f"{kind} {bare!r} is in {home}: pip install {home}", known)
        if home in published:
            is_older = home in {normalize(candidate.distribution) for candidate in self.discovery.candidates}
            command = published[home].install_command(home, "upgrade" if is_older else "install")
            place = f"{home} {published[home].version}"
            return PluginError("plugin-not-installed", f"{kind} {bare!r} is in {place}: {command}", known)
        nearest = did_you_mean(bare, [*(entry.name for entry in offered), *indexed_summaries(kind)])
        suspects = ", ".join(plugin.name for plugin in self.broken)
        doubt = f"It may be in a broken plugin ({suspects}): see `rllm plugins doctor`." if suspects else ""
        # The index lists all names of its packages, so only other packages can have an unknown name.
        blocked = [each for each in self.discovery.blocked if normalize(each.distribution) not in read_index()]
        causes = ", ".join(f"{each.distribution}, blocked by {each.blocked_by}" for each in blocked)
        lists = f"It may be in a blocked package: {causes}." if causes else ""
        hint = " ".join(filter(None, (nearest, known, doubt, lists)))
        return PluginError("unknown-plugin", f"There is no {kind} named {name!r}.", hint)


@cache
def resolve(kind: str, qualified_name: str) -> Registered[Any]:
    """Return the plugin ``distribution/name`` in a worker process, to which no plugin spec can be sent.

    Only plugins of that package and of the core are imported.

    Raises:
        PluginError: the plugin is not installed here, is broken, or was registered by a different program.
    """
    distribution = qualified_name.rpartition("/")[0]
    try:
        return Registry.load(allow={distribution}).get(kind, qualified_name)
    except PluginError as error:
        if distribution != IN_PROCESS:
            raise
        raise PluginError(
            "plugin-of-other-program",
            f"The {kind} {qualified_name!r} was registered by the running program, so worker processes do not have it.",
            f"Put it into a package and install that on every machine: `rllm plugins new NAME --kind {kind}`.",
        ) from error


def register_in_process(record: Plugin[Any], source: str) -> None:
    """Register a plugin spec of the running program for all registries that are loaded later.

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
    _ = record.params  # raises an error that an installed spec raises when it is chosen
    _, before = _in_process.get((record.kind, record.name), (record, source))
    if before != source:
        raise PluginError(
            "duplicate-plugin",
            f"{record.kind} {record.name!r} is registered by {before}, and by {source} as well.",
            "Choose a different name for one of them. If the first is gone, call "
            f"rllm_core.plugins.registry.forget_in_process({record.kind!r}, {record.name!r}) first.",
        )
    _in_process[record.kind, record.name] = record, source


def records_in_process() -> list[Plugin[Any]]:
    """Return the specs of the running program, in the order of registration."""
    return [record for record, _ in _in_process.values()]


def forget_in_process(kind: str, name: str) -> None:
    """Remove a spec, so that registries loaded later do not contain it. An unknown name is ignored."""
    _in_process.pop((kind, name), None)


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
        f"pip install --upgrade {CORE}" if newer else f"pip install --upgrade {candidate.distribution}",
    )


def _check_hook_names(plugin: object, manager: pluggy.PluginManager) -> None:
    """Reject functions that were meant as hooks and would never be called.

    pluggy's own `check_pending` checks all plugins at once. This check also names the plugin and the intended hook.
    """
    marks = {name: manager.parse_hookimpl_opts(plugin, name) for name in dir(plugin)}
    for name, mark in marks.items():
        if mark is None:
            meant = _nearest_hook(name, cutoff=0.85) if name.startswith("rllm_") else None
            if meant and inspect.isroutine(getattr(plugin, name)):
                doubt = "" if meant == name else f" (and is {meant} meant?)"
                reason = f"function {name} is not marked @hookimpl, so it would never be called{doubt}"
                raise UnusablePluginError(reason)
            continue
        hook = mark.get("specname") or name
        if hook not in _KIND_OF_HOOK:
            nearest = _nearest_hook(hook, cutoff=0.6)
            advice = f"did you mean {nearest}?" if nearest else f"hooks are {', '.join(_KIND_OF_HOOK)}"
            raise UnusablePluginError(f"hook {hook} does not exist; {advice}")
        if mark.get("wrapper") or mark.get("hookwrapper"):
            raise UnusablePluginError(f"{hook} is a wrapper; hooks of rllm must return plugin specs")
    if not any(marks.values()):
        raise UnusablePluginError("it offers no plugins: none of its functions is marked @hookimpl")


def _nearest_hook(name: str, cutoff: float) -> str | None:
    return next(iter(difflib.get_close_matches(name, _KIND_OF_HOOK, n=1, cutoff=cutoff)), None)


def _call_hooks(plugin: object, manager: pluggy.PluginManager) -> list[Plugin[Any]]:
    """Call each hook of one plugin, and check every spec that it returns.

    A call by pluggy would run a hook of all plugins, so that one plugin's error hides the others. It also drops None.
    """
    records: dict[tuple[str, str], Plugin[Any]] = {}
    for hook, kind in _KIND_OF_HOOK.items():
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            if implementation.plugin is not plugin:
                continue
            returned = implementation.function()
            if not isinstance(returned, Iterable) or isinstance(returned, str):
                raise UnusablePluginError(f"{hook} must return a list of records, not {one_line(repr(returned), 80)}")
            for result in returned:
                record = check_record(kind, result)
                if (kind, record.name) in records:
                    raise UnusablePluginError(f"{hook} offers {record.name!r} twice")
                records[kind, record.name] = record
    return list(records.values())
