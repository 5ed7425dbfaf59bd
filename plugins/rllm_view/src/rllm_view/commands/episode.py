"""`rllm episode`: the messages of a trajectory."""

from __future__ import annotations

from pathlib import Path

import click

RUN = click.argument("run", type=click.Path(path_type=Path, file_okay=False))
STEP = click.argument("step", type=click.IntRange(min=0))
UID = click.argument("uid")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@RUN
@STEP
@UID
def episode(run: Path, step: int, uid: str) -> None:
    """Print a trajectory turn by turn. STEP counts from 0. UID may be any unique part of the uid.

    \b
    Example:
      rllm episode runs/rllm-training/default 12 task-3:5
    """
    from rllm_view.commands.explaining import account_for, playback

    for line in playback(account_for(run, step, uid)):
        click.echo(line)
