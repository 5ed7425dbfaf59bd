"""`rllm why`: what a trajectory's gradient was made of."""

from __future__ import annotations

from pathlib import Path

import click

from rllm_view.commands.episode import RUN, STEP, UID


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@RUN
@STEP
@UID
@click.option("--token", type=click.IntRange(min=0), metavar="N", help="Show all recorded data of token N, from 0.")
@click.option(
    "--top", default=5, show_default=True, type=click.IntRange(min=1), help="Number of strongest tokens to list."
)
def why(run: Path | None, step: int | None, uid: str | None, token: int | None, top: int) -> None:
    """Explain why a trajectory was trained on or not, and the causes of its tokens' gradient.

    Without UID, list the trajectories of the step. Without STEP, list the recorded steps. Without RUN, list the runs.

    \b
    Examples:
      rllm why
      rllm why runs/rllm-training/guess-1 12 task-3:5
      rllm why runs/rllm-training/guess-1 12 task-3:5 --token 137
    """
    if run is None or step is None or uid is None:
        from rllm_view.commands.choices import list_choices

        list_choices("why", run, step)
        return
    from rllm_view.commands.explaining import about_token, about_whole, account_for

    account = account_for(run, step, uid)
    for line in about_whole(account, top) if token is None else about_token(account, token):
        click.echo(line)
