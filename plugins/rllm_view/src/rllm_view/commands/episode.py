"""`rllm episode`: the messages of a trajectory."""

from __future__ import annotations

from pathlib import Path

import click

RUN = click.argument("run", type=click.Path(path_type=Path, file_okay=False), required=False)
STEP = click.argument("step", type=click.IntRange(min=0), required=False)
UID = click.argument("uid", required=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@RUN
@STEP
@UID
def episode(run: Path | None, step: int | None, uid: str | None) -> None:
    """Print a trajectory turn by turn. STEP counts from 0. UID may be any unique part of the uid.

    Without UID, list the trajectories of the step. Without STEP, list the recorded steps. Without RUN, list the runs.

    \b
    Example:
      rllm episode runs/rllm-training/guess-1 12 task-3:5
    """
    if run is None or step is None or uid is None:
        from rllm_view.commands.choices import list_choices

        list_choices("episode", run, step)
        return
    from rllm_view.commands.explaining import account_for, playback

    for line in playback(account_for(run, step, uid)):
        click.echo(line)
