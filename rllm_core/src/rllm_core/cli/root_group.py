"""The commands of ``rllm`` itself: the core's and, below them, those that plugins add.

Packages' metadata is read only where it is needed: for ``--help``, and for a command that is not the core's. Running a
command of the core costs nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rllm_core.cli.lazy_group import LazyGroup

if TYPE_CHECKING:
    from rllm_core.plugins.commands import PluginCommands
    from rllm_core.plugins.discovery import Candidate


class RootGroup(LazyGroup):
    """The core's commands, which always mean the core's, and those of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.plugin_commands(ctx).by_name()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name.startswith("-"):
            return own
        return self.plugin_commands(ctx).get(cmd_name)

    def names_to_suggest(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.plugin_commands(ctx).names()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        if offers := self.plugin_commands(ctx).by_name():
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, _whose(candidates)) for name, candidates in offers.items()])

    def plugin_commands(self, ctx: click.Context) -> PluginCommands:
        """What is installed, read once per run of ``rllm``."""
        from rllm_core.plugins.commands import PluginCommands
        from rllm_core.plugins.discovery import discover

        if __name__ not in ctx.meta:
            ctx.meta[__name__] = PluginCommands.of(discover(), own=[*self.commands, *self.table])
        found: PluginCommands = ctx.meta[__name__]
        return found


def _whose(offers: list[Candidate]) -> str:
    names = " and ".join(candidate.distribution for candidate in offers)
    return f"From {names}." if len(offers) == 1 else f"From {names}: using it is an error."
