"""Commands that plugins add to ``rllm``: find them, record which package each comes from, and import one on use."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import click

from rllm_core.errors import PluginError
from rllm_core.notices import one_line
from rllm_core.plugins.discovery import (
    BLOCK_VARIABLE,
    COMMAND,
    Candidate,
    Discovery,
    UnusablePluginError,
    find_home_package,
    find_published_packages,
    indexed_summaries,
)


class PluginCommands(NamedTuple):
    """Commands of plugins, sorted into usable, hidden and blocked ones, by distribution name. None is imported."""

    usable: tuple[Candidate, ...]
    """Commands that may be imported. Two commands with the same name are both listed."""
    hidden: tuple[Candidate, ...]
    """Plugin commands whose name is also a core command's. The core's command always runs."""
    blocked: tuple[Candidate, ...]

    @classmethod
    def from_discovery(cls, discovery: Discovery, own: Collection[str]) -> PluginCommands:
        """Sort the installed commands. `own` contains the names of the core's commands."""
        allowed = [candidate for candidate in discovery.commands if not candidate.blocked_by]
        return cls(
            usable=tuple(candidate for candidate in allowed if candidate.entry_point not in own),
            hidden=tuple(candidate for candidate in allowed if candidate.entry_point in own),
            blocked=tuple(candidate for candidate in discovery.commands if candidate.blocked_by),
        )

    def by_name(self) -> dict[str, list[Candidate]]:
        """Words of the command -> who offers it, in alphabetical order."""
        names = sorted({candidate.entry_point for candidate in self.usable})
        return {name: [each for each in self.usable if each.entry_point == name] for name in names}

    def missing(self) -> dict[str, str]:
        """Commands of our distributions that are not installed -> the distribution."""
        known = {candidate.entry_point for candidate in (*self.usable, *self.hidden, *self.blocked)}
        homes = {name: find_home_package(COMMAND, name) for name in indexed_summaries(COMMAND) if name not in known}
        return {name: home for name, home in homes.items() if home is not None}

    def get(self, name: str) -> click.Command | None:
        """Import a command. None if no plugin has a command of that name.

        Raises:
            PluginError: two plugins offer it, it cannot be imported or is not a command, it is blocked, or its rllm
                package is not installed.
        """
        offers = self.by_name().get(name, [])
        if len(offers) > 1:
            raise PluginError(
                "ambiguous-command", f"Command {name!r} is offered by {format_candidates(offers)}.", format_hint(offers)
            )
        if offers:
            return load_command(offers[0])
        for candidate in self.blocked:
            if candidate.entry_point == name:
                message = f"Command {name!r} cannot be used: {candidate.distribution} is blocked."
                raise PluginError("blocked-plugin", message, f"It is blocked by {candidate.blocked_by}.")
        if home := find_home_package(COMMAND, name):
            raise PluginError("plugin-not-installed", f"Command {name!r} is in {home}.", f"pip install {home}")
        for package, entry in find_published_packages(COMMAND, name).items():
            raise PluginError(
                "plugin-not-installed",
                f"Command {name!r} is in {package} {entry.version}.",
                entry.install_command(package),
            )
        return None

    def names(self) -> list[str]:
        """Return names to suggest for an unknown command: usable ones, and commands of packages not installed."""
        return list(dict.fromkeys([*self.by_name(), *indexed_summaries(COMMAND)]))


def load_command(candidate: Candidate) -> click.Command:
    """Import a command.

    Raises:
        PluginError: the import fails, or the result is not a command. The message has the distribution.
    """
    from rllm_core.plugins.requirements import check_core_version  # reads versions, which `rllm --help` need not

    subject = f"Command {candidate.entry_point!r} of {candidate.distribution} {candidate.version} cannot be used"
    try:
        check_core_version(candidate)
    except UnusablePluginError as error:
        raise PluginError("broken-command", f"{subject}: {error}.", error.remedy) from error
    try:
        command = candidate.load()
    except (Exception, SystemExit) as error:  # (another's code; the user gets one paragraph)
        reason = one_line(f"{type(error).__name__}: {error}").rstrip(" :.")
        hint = f"Upgrade or uninstall {candidate.distribution}; --debug shows where it fails."
        raise PluginError("broken-command", f"{subject}: {reason}.", hint) from error
    if not isinstance(command, click.Command):
        what = one_line(repr(command), 80)
        hint = f"Report it to the authors of {candidate.distribution}."
        raise PluginError("broken-command", f"{subject}: it is not a click command but {what}.", hint)
    return command


def format_candidates(candidates: Collection[Candidate]) -> str:
    """Return distributions and versions as text, such as ``one 1.0 and two 2.0``."""
    return " and ".join(f"{candidate.distribution} {candidate.version}" for candidate in candidates)


def format_hint(clash: Collection[Candidate]) -> str:
    """Return the hint for several commands with the same name."""
    choices = " or ".join(f"{BLOCK_VARIABLE}={candidate.distribution}" for candidate in clash)
    return f"To use one, uninstall the other or block it: {choices}."
