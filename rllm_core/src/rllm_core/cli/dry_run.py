"""What `--dry-run` prints: stage graph, plugins with their versions, losses, every value with its origin."""

from __future__ import annotations

import json

import click

from rllm_core.cli.tables import print_table
from rllm_core.config.paths import leaves
from rllm_core.planning.plan import RunPlan
from rllm_core.planning.plan_losses import losses_in_force


def show_plan(plan: RunPlan) -> None:
    """Print a plan; nothing is loaded or trained."""
    click.echo("Stages of a training step, in order:")
    print_table(
        ("stage", "from", "reads", "writes"),
        [
            (
                stage.plugin.name,
                stage.registered.distribution,
                ", ".join(sorted(stage.plugin.reads)),
                ", ".join(sorted(stage.plugin.writes)),
            )
            for stage in plan.stages
        ],
    )
    click.echo("\nPlugins:")
    chosen = sorted((entry for entry in plan.registered() if entry.kind != "stage"), key=lambda entry: entry.kind)
    print_table(
        ("kind", "name", "distribution", "version"),
        [(entry.kind, entry.name, entry.distribution, entry.version) for entry in chosen],
        bold=1,
    )
    click.echo("\nLosses:")
    print_table(
        ("role", "estimator", "loss", "from", "default of the estimator"),
        [
            (
                "all" if entry.role is None else entry.role,
                entry.estimator,
                entry.loss,
                entry.origin,
                "the same" if entry.is_default else f"{entry.default} ({entry.word(entry.default)})",
            )
            for entry in losses_in_force(plan)
        ],
    )
    click.echo("\nConfig:")
    show_values(plan)
    for line in (*plan.warnings, *_show_footprint(plan)):
        click.echo(f"warning: {line}", err=True)


def _show_footprint(plan: RunPlan) -> tuple[str, ...]:
    """Print what the run takes of the machine, if the backend knows; returns its warnings."""
    estimate = plan.backend.plugin.footprint
    found = estimate and estimate(plan.composed.backend_config, plan.config, plan.needs)
    if not found:
        return ()
    if found.rows:
        click.echo(f"\n{found.title}:")
        print_table((), found.rows)
    return found.warnings


def show_values(plan: RunPlan) -> None:
    """Print every value of a plan with its origin."""
    values = [(".".join(path), json.dumps(value)) for path, value in leaves(plan.composed.written)]
    print_table(("key", "value", "origin"), [(key, value, plan.composed.origin(key)) for key, value in values])
