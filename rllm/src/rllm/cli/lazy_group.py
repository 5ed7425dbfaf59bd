"""Command groups that start fast and forgive typing: subcommands are imported when they run, not before."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click

from rllm_core.errors import did_you_mean


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
