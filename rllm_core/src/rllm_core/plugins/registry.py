"""All plugins of this process, by kind and name. Broken plugins are kept separately. Plugins with the same name never
hide each other."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rllm_core.contracts.chosen import FAMILY, RecordT, Registered
from rllm_core.contracts.plugin import Plugin
from rllm_core.errors import PluginError, did_you_mean, format_problem
from rllm_core.notices import warn_once
from rllm_core.plugins import in_process
from rllm_core.plugins.discovery import (
    IN_PROCESS,
    Broken,
    Candidate,
    Discovery,
    UnusablePluginError,
    core_candidate,
    discover,
    normalize,
)
from rllm_core.plugins.kinds import KINDS
from rllm_core.plugins.loading import describe_failure, load_records, new_manager
from rllm_core.plugins.unknown_name import unknown_name
from rllm_core.plugins.validation import check_record


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
            environ: environment variables, by default ``os.environ``. ``RLLM_BLOCK_PLUGINS`` is read.
        """
        registry = cls(discovery=discover(allow, environ))
        manager = new_manager()
        core = core_candidate()
        registry._accept(core, load_records(manager, core))
        for candidate in registry.discovery.candidates:
            try:
                records = load_records(manager, candidate)
            except (Exception, SystemExit) as error:  # noqa: BLE001  (a broken plugin must not stop the program)
                registry._set_aside(candidate, error)
            else:
                registry._accept(candidate, records)
        for record in in_process.records():
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
            raise unknown_name(kind, name, self._of_kind(kind), self.broken, self.discovery.blocked)
        if len(matches) > 1:
            offers = " and ".join(f"{match.distribution} {match.version}" for match in matches)
            choices = " or ".join(match.qualified_name for match in matches)
            raise PluginError(
                "ambiguous-plugin",
                f"{kind} {name!r} is offered by {offers}.",
                f"Write {choices} to choose one.",
            )
        return matches[0]

    def conflicts(self) -> list[list[Registered[Any]]]:
        """Return lists of two or more plugins that have the same kind and name."""
        clashes = []
        for kind, registered in self._registered.items():
            for name in dict.fromkeys(entry.name for entry in registered):
                matches = self._matches(kind, name)
                if len(matches) > 1:
                    clashes.append(matches)
        return clashes

    def add(self, record: RecordT, *, distribution: str = IN_PROCESS, version: str = "0") -> Registered[RecordT]:
        """Register a plugin spec from the running process, as notebooks and tests do. It is checked like an installed
        spec.

        Two specs with the same name and `distribution` are an error here. With different `distribution`, the error
        occurs only if the name is chosen.
        """
        kind = str(getattr(record, "kind", ""))
        if kind not in KINDS:
            raise PluginError(
                "bad-plugin-spec", f"{record!r} is not a plugin spec.", f"Plugin specs are {_record_classes()}."
            )
        try:
            check_record(kind, record)
        except UnusablePluginError as error:
            raise PluginError("bad-plugin-spec", str(error)) from error
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

    def _accept(self, candidate: Candidate, records: list[Plugin[Any]]) -> None:
        for record in records:
            clash = self._matches(record.kind, f"{candidate.distribution}/{record.name}")
            if clash:  # one distribution with two entry points
                offer = f"{record.kind} {clash[0].qualified_name}"
                self._set_aside(candidate, UnusablePluginError(f"{offer} is offered by another entry point too"))
                return
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


def _record_classes() -> str:
    return ", ".join(kind.record.__name__ for kind in KINDS.values())


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
