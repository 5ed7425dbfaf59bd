"""Flags of `rllm train` that installed objectives add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from rllm_core.contracts.objective import ObjectiveFlag, ObjectivePlugin
from rllm_core.plugins.registry import Registry


def objective_flags() -> Iterator[tuple[ObjectiveFlag, ObjectivePlugin]]:
    """Yield the flags of all installed objectives. This loads the plugins."""
    for entry in Registry.load().all("objective"):
        if entry.plugin.flag is not None:
            yield entry.plugin.flag, entry.plugin


class TrainCommand(click.Command):
    """A command with the flags of installed objectives."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {option for parameter in self.params for option in parameter.opts}
        # Plugins are loaded only for an unknown flag, which may belong to a plugin, or to list all flags.
        if any(word.startswith("-") and word.partition("=")[0] not in known for word in args):
            self.params += [
                click.Option([f"--{flag.name}"], metavar=flag.metavar, help=f"{objective.summary} [{flag.key}]")
                for flag, objective in objective_flags()
                if f"--{flag.name}" not in known
            ]
        return super().parse_args(ctx, args)


def read_objectives(flags: Mapping[str, Any], choices: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the objectives that flags choose besides ``--objective``, and the values of their keys.

    Args:
        flags: values of all flags by name, with underscores.
        choices: values of other flags by key.
    """
    names: list[str] = []
    values: dict[str, Any] = {}
    for flag, objective in objective_flags():
        if (text := flags.get(flag.name.replace("-", "_"))) is None:
            continue
        if flag.key in choices:
            raise click.UsageError(f"--{flag.name} and a different flag both set {flag.key}.")
        names.append(objective.name)
        values[flag.key] = flag.value(text)
    return names, values
