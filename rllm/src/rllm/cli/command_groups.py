"""Command groups that start fast and forgive typing. Plugins can add commands to ``rllm`` and ``rllm plugins``.

A subcommand is imported when it runs. Package metadata is only read when it is needed: for ``--help``, and for a
command that is not the core's. So the core's commands start without this delay.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rllm_core.errors import did_you_mean

if TYPE_CHECKING:
    from rllm.cli.plugin_commands import PluginCommands
    from rllm_core.plugins.discovery import Candidate


class LazyCommand(NamedTuple):
    """A command that has not been imported yet."""

    module: str
    attribute: str
    """The click command in that module."""
    summary: str
    """Shown by ``--help`` of the group, which therefore imports no command."""


class ForgivingGroup(click.Group):
    """A group that answers an unknown command with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, *rest = args
        if (command := self.get_command(ctx, name)) is not None:
            return name, command, rest
        if not name.startswith("-"):
            nearest = did_you_mean(name, self.names_to_suggest(ctx))
            advice = nearest or f"Commands are {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"There is no command {name!r}. {advice}", ctx)
        return super().resolve_command(ctx, args)

    def names_to_suggest(self, ctx: click.Context) -> list[str]:
        """Return the command names that an unknown command is compared with for "Did you mean"."""
        return self.list_commands(ctx)


class LazyGroup(ForgivingGroup):
    """A group some or all of whose commands are given as a table."""

    def __init__(self, *args: Any, table: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self.table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*self.own_rows(ctx)])

    def own_rows(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield the names and summaries of the program's commands."""
        for name, command in self.commands.items():
            yield name, command.get_short_help_str(limit=100)
        for name, entry in self.table.items():
            yield name, entry.summary


PROGRAM = "rllm"
"""Name of the package with the program."""


class ExtensibleGroup(LazyGroup):
    """A command group with the core's commands and the commands of plugins. A core command wins over a plugin's."""

    def __init__(self, *args: Any, table: Mapping[str, LazyCommand], prefix: str = "", **kwargs: Any) -> None:
        """Create a group. `prefix` is the group's name after ``rllm``, with a space at the end."""
        super().__init__(*args, table=table, **kwargs)
        self.prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._offers(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name.startswith("-"):
            return own
        return self.plugin_commands(ctx).get(self.prefix + cmd_name)

    def names_to_suggest(self, ctx: click.Context) -> list[str]:
        offered = self._here(dict.fromkeys(self.plugin_commands(ctx).names(), ""))
        return [*super().list_commands(ctx), *offered]

    def own_rows(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        from rllm_core.plugins.discovery import COMMAND, indexed_summaries

        yield from super().own_rows(ctx)
        summaries = self._here(indexed_summaries(COMMAND))
        yield from ((name, summaries.get(name, "")) for name, found in self._offers(ctx).items() if _is_own(found))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from rllm_core.plugins.discovery import COMMAND, indexed_summaries

        super().format_commands(ctx, formatter)
        ours = self._here(indexed_summaries(COMMAND))
        offers = {name: found for name, found in self._offers(ctx).items() if not _is_own(found)}
        rows = [(name, _describe_offers(ours.get(name, ""), found)) for name, found in offers.items()]
        missing = self._here(self.plugin_commands(ctx).missing())
        rows += [(name, f"{ours[name]} Not installed: pip install {home}") for name, home in missing.items()]
        if rows:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(rows)

    def plugin_commands(self, ctx: click.Context) -> PluginCommands:
        """Commands of the installed plugins, read once per invocation of ``rllm``."""
        from rllm.cli.plugin_commands import PluginCommands
        from rllm_core.plugins.discovery import discover

        key = f"{__name__}.{self.prefix}"
        if key not in ctx.meta:
            own = [self.prefix + name for name in (*self.commands, *self.table)]
            ctx.meta[key] = PluginCommands.from_discovery(discover(), own=own)
        found: PluginCommands = ctx.meta[key]
        return found

    def _offers(self, ctx: click.Context) -> dict[str, list[Candidate]]:
        return self._here(self.plugin_commands(ctx).by_name())

    def _here(self, by_words: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries that belong to this group, by the last part of their command name."""
        return {
            words.removeprefix(self.prefix): value
            for words, value in by_words.items()
            if words.startswith(self.prefix) and " " not in words.removeprefix(self.prefix)
        }


def _is_own(offers: list[Candidate]) -> bool:
    """True if only the program's own package offers a command."""
    return {candidate.distribution for candidate in offers} == {PROGRAM}


def _describe_offers(summary: str, offers: list[Candidate]) -> str:
    names = " and ".join(candidate.distribution for candidate in offers)
    return f"{summary} From {names}.".strip() if len(offers) == 1 else f"From {names}: using it is an error."
