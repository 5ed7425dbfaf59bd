"""Numbers as the terminal shows them."""

from __future__ import annotations

import json
from typing import Any

import click

from rllm.cli import print_table
from rllm_core.notices import harmless


def figure(value: float | None) -> str:
    """To three decimals; ``-`` for what is not known."""
    # -0.0 + 0.0 is 0.0: no figure is -0.
    return "-" if value is None else f"{round(value, 3) + 0.0:.3f}"


def print_comparison(found: dict[str, Any], most_tasks: int) -> None:
    """Print what `rllm_view.api.comparing.compare` gives."""
    runs = found["runs"]
    names = [harmless(run.name) for run in runs]
    for name, problems in zip(names, found["problems"], strict=True):
        for problem in problems:
            click.echo(f"{name}: {harmless(problem)}")
    click.echo("figures")
    figures = [("steps", [str(run.steps) for run in runs])]
    figures += [(name, [figure(getattr(run, name)) for run in runs]) for name in ("reward", "solved", "validation")]
    print_table(("figure", *names), [(name, *values) for name, values in figures])
    click.echo("\nsettings that differ")
    settings = [(row["key"], *(harmless(json.dumps(value)) for value in row["values"])) for row in found["settings"]]
    print_table(("key", *names), settings)
    tasks = found["tasks"][:most_tasks]
    if tasks:
        click.echo(f"\nshare of rollouts solved over {_steps(found['compared_steps'])}, the most different tasks first")
        rows = [(harmless(str(row["task"])), *(figure(cell["solved"]) for cell in row["runs"])) for row in tasks]
        print_table(("task", *names), rows)


def _steps(count: int) -> str:
    return (
        "the 1 step that can be read of all runs" if count == 1 else f"the {count} steps that can be read of all runs"
    )
