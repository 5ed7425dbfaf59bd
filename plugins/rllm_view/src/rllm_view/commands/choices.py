"""Lists of the runs, steps and trajectories that `rllm why` and `rllm episode` can show, with the command to type."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from rllm_core.errors import ConfigError
from rllm_core.notices import harmless, one_line
from rllm_record.run_files import RUNS, find_runs, no_run_error, short_path
from rllm_record.terminal import print_table
from rllm_view.commands.explaining import short_uid
from rllm_view.commands.tables import print_runs
from rllm_view.commands.values import print_json
from rllm_view.reading.rollouts import Filter, find_rollouts
from rllm_view.reading.run import Run, newest_first
from rllm_view.reading.steps import step_summaries
from rllm_view.reading.texts import read_previews

LISTED = 20
"""Maximum number of rows in a list."""
PREVIEW = 20
"""Maximum number of characters of a response in a list, so that a row fits into 80 columns."""


def list_choices(command: str, directory: Path | None, step: int | None, *, as_json: bool = False) -> None:
    """Print the runs in a directory (default: ``runs``), the steps of its only run, or the trajectories of a step.

    The text has at most `LISTED` rows. JSON has all rows.

    Raises:
        ConfigError: the directory contains no run, or `step` is given and it contains several.
        RecordError: the step is not recorded.
    """
    places = find_runs([directory or RUNS])
    if not places:
        raise no_run_error(directory or RUNS)
    if len(places) > 1:
        _list_runs(command, [Run(place) for place in places], as_json)
        return
    run = Run(places[0])
    run.require_step(step)
    run.index.refresh()
    if step is None:
        _list_steps(command, run, as_json)
    else:
        _list_trajectories(command, run, step, as_json)


def format_value(value: float | None) -> str:
    """Return a number with three decimals, or ``-`` if it is not available."""
    # -0.0 + 0.0 is 0.0: no number is -0.
    return "-" if value is None else f"{round(value, 3) + 0.0:.3f}"


def _list_runs(command: str, runs: list[Run], as_json: bool) -> None:
    summaries = newest_first(run.summary() for run in runs)
    if as_json:
        print_json(summaries)
        return
    rows = [
        (
            str(short_path(Path(each.directory))),
            str(each.recorded_steps),
            each.content or "none",
            format_value(each.solved),
        )
        for each in summaries
    ]
    print_runs(("run", "recorded steps", "record", "solved"), rows[:LISTED])
    chosen = next((row for row, each in zip(rows, summaries, strict=True) if each.recorded_steps), rows[0])
    _print_next(command, shlex.quote(chosen[0]), len(rows))


def _list_steps(command: str, run: Run, as_json: bool) -> None:
    summaries = step_summaries(run.index, run.lines())[::-1]
    rows = [
        (
            str(each.step),
            str(each.generated + each.waited),
            str(each.trained),
            str(each.masked + each.dropped),
            format_value(each.reward),
            format_value(each.solved),
        )
        for each in summaries
    ]
    if not rows and run.index.problems:
        raise run.index.problems[max(run.index.problems)]
    if not rows:
        raise ConfigError(
            "nothing-recorded",
            f"{_quote(run)} has no recorded trajectories.",
            "If its steps generated nothing, look at the metrics: rllm view shows why rollouts ended.",
        )
    if as_json:
        print_json(summaries)
        return
    print_table(("step", "trajectories", "trained", "masked or rejected", "reward", "solved"), rows[:LISTED])
    _print_next(command, f"{_quote(run)} {rows[0][0]}", len(rows))


def _list_trajectories(command: str, run: Run, step: int, as_json: bool) -> None:
    limit = sys.maxsize if as_json else LISTED
    found = find_rollouts(run.index, Filter(step=step, order="reward", descending=True, limit=limit))
    if as_json:
        print_json(found.rows)
        return
    short = [short_uid(row.trajectory) for row in found.rows]
    names = short if len(set(short)) == len(short) else [row.trajectory for row in found.rows]
    previews = read_previews(run.record, [(row.rollout_step, row.trajectory) for row in found.rows])
    responses = [previews[row.trajectory].response if row.trajectory in previews else None for row in found.rows]
    rows = [
        (
            harmless(name),
            row.name,
            format_value(row.reward_used),
            format_value(row.advantage),
            row.outcome,
            "-" if response is None else harmless(one_line(response, PREVIEW)),
        )
        for name, row, response in zip(names, found.rows, responses, strict=True)
    ]
    print_table(("trajectory", "role", "reward", "advantage", "outcome", "response"), rows)
    _print_next(command, f"{_quote(run)} {step} {shlex.quote(rows[0][0])}", found.total)


def _print_next(command: str, arguments: str, total: int) -> None:
    if total > LISTED:
        click.echo(f"{total - LISTED} more are not shown.")
    click.echo(f"\nnext: rllm {command} {arguments}")


def _quote(run: Run) -> str:
    return shlex.quote(str(short_path(run.place.directory)))
