"""`rllm runs list`: list runs and their progress."""

from __future__ import annotations

from pathlib import Path

import click

from rllm.cli import print_table

DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def runs() -> None:
    """List runs. `rllm view` compares them."""


@runs.command("list")
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...", type=DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def list_runs(directories: tuple[Path, ...], as_json: bool) -> None:
    """List the runs in and below each DIRECTORY (default: runs), with their progress.

    \b
    Examples:
      rllm runs list
      rllm runs list runs/rllm-training --json
    """
    from rllm_record.run_places import find_runs
    from rllm_view.api.as_json import as_json as to_json
    from rllm_view.commands.choices import format_value, short_path
    from rllm_view.reading.run import Run

    summaries = [Run(place).summary() for place in find_runs(directories or (Path("runs"),))]
    if as_json:
        click.echo(to_json(summaries).decode())
        return
    rows = [
        (
            str(short_path(Path(each.directory))),
            f"{each.steps}" + (f"/{each.total_steps}" if each.total_steps else ""),
            format_value(each.reward),
            format_value(each.solved),
            format_value(each.validation),
            each.estimator or "-",
            each.backend or "-",
            f"{each.content}, {each.recorded_steps} steps" if each.content else "none",
        )
        for each in summaries
    ]
    print_table(("run", "steps", "reward", "solved", "val pass@1", "estimator", "backend", "record"), rows)
