"""`rllm runs list`: list runs and their progress."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rllm_view.commands.tables import print_runs

if TYPE_CHECKING:
    from rllm_view.reading.run import RunSummary

DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)
HEADINGS = ("run", "status", "started", "steps", "reward", "solved", "val pass@1", "environment")
MORE_HEADINGS = ("estimator", "backend", "record")
"""Columns of the list for programs. They would not fit into 80 columns."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def runs() -> None:
    """List runs. `rllm view` compares them."""


@runs.command("list")
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...", type=DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_runs(directories: tuple[Path, ...], as_json: bool) -> None:
    """List the runs in and below each DIRECTORY (default: runs), with their progress, the newest first.

    \b
    Examples:
      rllm runs list
      rllm runs list runs/rllm-training --json
    """
    from rllm_record.run_places import RUNS, find_runs
    from rllm_view.api.as_json import as_json as to_json
    from rllm_view.reading.run import Run, newest_first

    summaries = newest_first(Run(place).summary() for place in find_runs(directories or (RUNS,)))
    if as_json:
        click.echo(to_json(summaries).decode())
    elif sys.stdout.isatty():
        print_runs(HEADINGS, [_values(each) for each in summaries])
    else:
        print_runs((*HEADINGS, *MORE_HEADINGS), [(*_values(each), *_more_values(each)) for each in summaries])


def _values(run: RunSummary) -> tuple[str, ...]:
    from rllm_record.run_places import short_path
    from rllm_view.commands.choices import format_value

    return (
        str(short_path(Path(run.directory))),
        run.status or "-",
        f"{datetime.fromisoformat(run.started).astimezone():%Y-%m-%d %H:%M}" if run.started else "-",
        f"{run.steps}" + (f"/{run.total_steps}" if run.total_steps else ""),
        format_value(run.reward),
        format_value(run.solved),
        format_value(run.validation),
        run.environment or "-",
    )


def _more_values(run: RunSummary) -> tuple[str, ...]:
    return (
        run.estimator or "-",
        run.backend or "-",
        f"{run.content}, {run.recorded_steps} step{'s' * (run.recorded_steps != 1)}" if run.content else "none",
    )
