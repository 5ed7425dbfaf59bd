"""What `--dry-run` prints: the stage graph, the plugins with their versions, every value with its origin."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from rllm_core.config.resolve import leaves
from rllm_core.plan import RunPlan


def show_plan(plan: RunPlan) -> None:
    """Print a plan; nothing is loaded or trained."""
    console = Console(highlight=False, soft_wrap=True)
    console.print("[bold]Stages of a training step[/bold]")
    stages = Table(box=None, padding=(0, 2))
    for heading in ("stage", "from", "reads", "writes"):
        stages.add_column(heading, no_wrap=True)
    for stage in plan.stages:
        reads, writes = (", ".join(sorted(keys)) for keys in (stage.plugin.reads, stage.plugin.writes))
        stages.add_row(stage.plugin.name, stage.registered.distribution, reads, writes)
    console.print(stages)
    console.print("\n[bold]Plugins[/bold]")
    plugins = Table(box=None, padding=(0, 2))
    for heading in ("kind", "name", "distribution", "version"):
        plugins.add_column(heading, no_wrap=True)
    for entry in sorted(plan.registered(), key=lambda entry: (entry.kind, entry.name)):
        if entry.kind != "stage":
            plugins.add_row(entry.kind, entry.name, entry.distribution, entry.version)
    console.print(plugins)
    console.print("\n[bold]Config[/bold]")
    values = Table(box=None, padding=(0, 2))
    for heading in ("key", "value", "origin"):
        values.add_column(heading, no_wrap=True)
    for path, value in leaves(plan.composed.tree):
        key = ".".join(path)
        origin = plan.composed.origins[key]
        style = "dim" if origin == "default" else ""
        values.add_row(key, json.dumps(value), origin, style=style)
    console.print(values)
