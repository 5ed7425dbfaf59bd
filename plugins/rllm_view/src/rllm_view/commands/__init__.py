"""The commands `rllm view`, `rllm runs`, `rllm episode` and `rllm why`. Each imports its code when it runs."""

from __future__ import annotations

import os
import secrets
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rllm_record.store.fetching import RunPath

if TYPE_CHECKING:
    from rllm_view.reading.run import RunSummary

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
RUN = click.argument("run", type=RunPath(file_okay=False), required=False)
FOLLOWED_RUN = click.argument("run", type=RunPath(follows=True, file_okay=False), required=False)
STEP = click.argument("step", type=click.IntRange(min=0), required=False)
UID = click.argument("uid", required=False)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
DIRECTORY = RunPath(exists=True, file_okay=False)
HEADINGS = ("run", "status", "started", "steps", "reward", "solved", "val pass@1", "environment")
MORE_HEADINGS = ("estimator", "backend", "record")
"""Columns of the list for programs. They would not fit into 80 columns."""


@click.command(context_settings=HELP)
@click.argument("runs", nargs=-1, metavar="[RUN|FILE]...", type=RunPath(follows=True, exists=True))
@click.option(
    "--port", default=0, metavar="N", type=click.IntRange(0, 65535), help="Port to listen on. 0 means any free port."
)
@click.option("--announce", type=click.Path(path_type=Path, dir_okay=False), help="File to write the URL to, as JSON.")
@click.option(
    "--static", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT", help="Write one file instead."
)
@click.option(
    "--episodes",
    default=100,
    show_default=True,
    type=click.IntRange(min=0),
    help="Maximum episodes per run in that file.",
)
def view(runs: tuple[Path, ...], port: int, announce: Path | None, static: Path | None, episodes: int) -> None:
    """Inspect runs in the browser: curves, steps, groups, and each token down to its gradient.

    RUN is a run directory or a directory of runs (default: runs). FILE has episodes of a different program, such as
    trajectories of Harbor (ATIF), traces of verifiers or prime-rl, logs of inspect-ai, and rollouts of NeMo-Gym, TRL or
    verl. Only this machine can connect, and only with the key in the printed URL. RLLM_VIEW_KEY sets your own key. From
    a different machine: ssh -L 8000:127.0.0.1:PORT HOST.

    \b
    Examples:
      rllm view
      rllm view runs/rllm-training/guess-1 --port 8000
      rllm view runs/rllm-training/guess-1 --static run.html
      rllm view traces.jsonl
    """
    from rllm_view.episode_files import as_runs

    with as_runs(runs or (Path("runs"),)) as places:
        if static is not None:
            from rllm_view.static import write_page

            write_page(places, static, episodes)
            click.echo(f"wrote {static}")
        else:
            raise SystemExit(_serve(places, port, announce))


def _serve(runs: tuple[Path, ...], port: int, announce: Path | None) -> int:
    """Serve until a signal, and return the exit code."""
    from rllm_view.serving import KEY_VARIABLE, serve

    key = os.environ.get(KEY_VARIABLE) or secrets.token_urlsafe(18)

    def ready(url: str) -> None:
        click.echo(f"open {url}\nCtrl-C ends it")

    return serve(runs, key, ready, port=port, announcement=announce)


@click.group(context_settings=HELP)
def runs() -> None:
    """List runs, and show pending rollouts. `rllm view` compares them."""


@runs.command("list")
@click.argument("directories", nargs=-1, metavar="[DIRECTORY]...", type=DIRECTORY)
@JSON
def list_runs(directories: tuple[Path, ...], as_json: bool) -> None:
    """List the runs in and below each DIRECTORY (default: runs), with their progress, the newest first.

    \b
    Examples:
      rllm runs list
      rllm runs list runs/rllm-training --json
    """
    from rllm_record.run_files import RUNS, find_runs
    from rllm_view.commands.tables import print_runs
    from rllm_view.commands.values import print_json
    from rllm_view.reading.run import Run, newest_first

    summaries = newest_first(Run(place).summary() for place in find_runs(directories or (RUNS,)))
    if as_json:
        print_json(summaries)
    elif sys.stdout.isatty():
        print_runs(HEADINGS, [_values(each) for each in summaries])
    else:
        print_runs((*HEADINGS, *MORE_HEADINGS), [(*_values(each), *_more_values(each)) for each in summaries])


@runs.command("status")
@FOLLOWED_RUN
@JSON
@click.option("--watch", is_flag=True, help="Print the status every second until the run ends.")
def run_status(run: Path | None, as_json: bool, watch: bool) -> None:
    """Show the pending rollouts of RUN, the longest wait first (default: the newest run).

    A rollout waits for the model, a tool, a reward, a sandbox, the environment, the environment's server, or its
    workflow's own code, such as an agent.

    \b
    Examples:
      rllm runs status
      rllm runs status runs/rllm-training/guess-1 --watch
      rllm runs status runs/rllm-training/guess-1 --json
    """
    from rllm_view.commands.pending import follow_status

    follow_status(run, as_json=as_json, watch=watch)


def _values(run: RunSummary) -> tuple[str, ...]:
    from rllm_record.run_files import short_path
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


@click.command(context_settings=HELP)
@RUN
@STEP
@UID
@JSON
def episode(run: Path | None, step: int | None, uid: str | None, as_json: bool) -> None:
    """Print a trajectory turn by turn. STEP counts from 0. UID may be any unique part of the uid.

    Without UID, list the trajectories of the step. Without STEP, list the recorded steps. Without RUN, list the runs.

    \b
    Examples:
      rllm episode runs/rllm-training/guess-1 12 task-3:5
      rllm episode runs/rllm-training/guess-1 12 --json
    """
    if run is None or step is None or uid is None:
        from rllm_view.commands.choices import list_choices

        list_choices("episode", run, step, as_json=as_json)
        return
    from rllm_view.commands.explaining import account_for, playback

    account = account_for(run, step, uid)
    if as_json:
        from rllm_view.commands.values import episode_values, print_json

        print_json(episode_values(account))
        return
    for line in playback(account):
        click.echo(line)


@click.command(context_settings=HELP)
@RUN
@STEP
@UID
@click.option("--token", type=click.IntRange(min=0), metavar="N", help="Show all recorded data of token N, from 0.")
@click.option(
    "--top", default=5, show_default=True, type=click.IntRange(min=1), help="Number of strongest tokens to list."
)
@JSON
def why(run: Path | None, step: int | None, uid: str | None, token: int | None, top: int, as_json: bool) -> None:
    """Explain why a trajectory was trained on or not, and the causes of its tokens' gradient.

    Without UID, list the trajectories of the step. Without STEP, list the recorded steps. Without RUN, list the runs.

    \b
    Examples:
      rllm why
      rllm why runs/rllm-training/guess-1 12 task-3:5
      rllm why runs/rllm-training/guess-1 12 task-3:5 --token 137
      rllm why runs/rllm-training/guess-1 12 task-3:5 --json
    """
    if run is None or step is None or uid is None:
        from rllm_view.commands.choices import list_choices

        list_choices("why", run, step, as_json=as_json)
        return
    from rllm_view.commands.explaining import about_token, about_whole, account_for

    account = account_for(run, step, uid)
    if as_json:
        from rllm_view.commands.values import print_json, token_values, why_values

        print_json(why_values(account, top) if token is None else token_values(account, token))
        return
    for line in about_whole(account, top) if token is None else about_token(account, token):
        click.echo(line)
