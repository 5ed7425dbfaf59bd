"""``rllm plugins``: list installed plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rllm.cli.command_groups import ExtensibleGroup, LazyCommand

if TYPE_CHECKING:
    from rllm.cli.plugin_commands import PluginCommands
    from rllm_core.contracts.chosen import Registered
    from rllm_core.plugins.discovery import Discovery


COMMANDS = {
    "info": LazyCommand("rllm.inspection.info", "info", "Show one plugin and its options."),
    "doctor": LazyCommand("rllm.inspection.doctor", "doctor", "Check everything that is installed."),
}


@click.group(cls=ExtensibleGroup, table=COMMANDS, prefix="plugins ")
def plugins() -> None:
    """List and check installed plugins. Create a new plugin.

    \b
    Everything that you choose by name in config is a plugin: estimators, losses, groupings,
    rejection modes, samplers, stages, backends, engines, workflows, agents, environments, rewards,
    renderers, datasets, trackers, observers, sandboxes, teachers.
    \b
    Find and install more plugins:
      rllm plugins search games
      rllm plugins install rllm-envs
    \b
    To run without an installed plugin, or only with some packages:
      RLLM_BLOCK_PLUGINS=rllm-estimators rllm train guess
      RLLM_ALLOW_PLUGINS=rllm-local,rllm-view rllm train guess
      RLLM_BLOCK_PLUGINS='*' rllm plugins list         (only plugins that come with rllm)
    """


@plugins.command("list")
@click.argument("kind", required=False)
@click.option("--kind", "same_kind", metavar="KIND", help="The same as the argument KIND.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_plugins(kind: str | None, same_kind: str | None, as_json: bool) -> None:
    """List plugins by kind and name, with a summary and their package.

    KIND lists only plugins of this kind, such as estimator or backend.

    \b
    Examples:
      rllm plugins list
      rllm plugins list estimator
      rllm plugins list --json | jq -r '.[].qualified_name'
    """
    from rllm.cli.plugin_commands import format_candidates
    from rllm_core.plugins.registry import Registry
    from rllm_core.plugins.specs import KINDS
    from rllm_record.terminal import print_table

    if kind and same_kind:
        raise click.UsageError("KIND is given twice.")
    kind = kind or same_kind
    registry = Registry.load()
    entries = [entry for each in ([kind] if kind else KINDS) for entry in registry.all(each)]
    if as_json:
        import json

        click.echo(json.dumps([describe_entry(entry) for entry in entries], indent=2))
        return
    ambiguous = {entry.qualified_name for clash in registry.conflicts() for entry in clash}
    rows = [
        (
            entry.kind,
            entry.qualified_name if entry.qualified_name in ambiguous else entry.name,
            entry.plugin.summary + (" (deprecated)" if entry.plugin.deprecated else ""),
            f"{entry.distribution} {entry.version}",
        )
        for entry in entries
    ]
    print_table(("kind", "name", "what it does", "comes from"), rows, bold=1)
    offers = {} if kind else commands_in(registry.discovery).by_name()
    for name, candidates in offers.items():
        click.echo(f"Command `rllm {name}` comes from {format_candidates(candidates)}.")


def commands_in(discovery: Discovery) -> PluginCommands:
    """Return the plugin commands in a scan. Core commands hide plugin commands with the same name."""
    from rllm.cli.main import COMMANDS as OF_THE_CORE
    from rllm.cli.plugin_commands import PluginCommands

    return PluginCommands.from_discovery(discovery, OF_THE_CORE)


def describe_entry(entry: Registered[Any]) -> dict[str, str | None]:
    """Return the name, the package and the summary of a plugin as JSON."""
    return {
        "kind": entry.kind,
        "name": entry.name,
        "qualified_name": entry.qualified_name,
        "distribution": entry.distribution,
        "version": entry.version,
        "summary": entry.plugin.summary,
        "deprecated": entry.plugin.deprecated,
    }
