"""`rllm runs status`: the progress of a run, and its pending rollouts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from rllm_core.notices import harmless, one_line
from rllm_record.pending import PendingFile
from rllm_record.run_files import RUNS, find_runs, no_run_error, one_run, short_path
from rllm_record.terminal import print_table
from rllm_view.commands.values import print_json
from rllm_view.reading.pending import pending_rollouts, pending_rows
from rllm_view.reading.run import Run, RunSummary, newest_first

SHOWN = 20
"""Maximum number of rows of the table. JSON has all rows of the file."""
SECONDS_BETWEEN = 1.0
RUNNING = "running"


def follow_status(directory: Path | None, *, as_json: bool, watch: bool) -> None:
    """Print the status of a run, or of the newest run. With `watch`, repeat it until the run ends.

    Raises:
        ConfigError: the directory contains no run, or several runs.
    """
    run = Run(one_run(directory)) if directory is not None else _newest_run()
    while True:
        summary = run.summary()
        pending = pending_rollouts(run)
        if watch and sys.stdout.isatty() and not as_json:
            click.clear()
        if as_json:
            print_json(_values(summary, pending, time.time()))
        else:
            _print_status(summary, pending, time.time())
        if not (watch and summary.status == RUNNING):
            return
        time.sleep(SECONDS_BETWEEN)


def _newest_run() -> Run:
    runs = {place.directory: Run(place) for place in find_runs([RUNS])}
    summaries = newest_first(run.summary() for run in runs.values())
    if not summaries:
        raise no_run_error(RUNS)
    newest = next((each for each in summaries if each.status == RUNNING), summaries[0])
    return runs[Path(newest.directory)]


def _values(summary: RunSummary, pending: PendingFile, now: float) -> dict[str, Any]:
    return {
        "run": summary.directory,
        "status": summary.status,
        "steps": summary.steps,
        "total_steps": summary.total_steps,
        "pending": pending.total,
        "rollouts": pending_rows(pending.rows, now),
    }


def _print_status(summary: RunSummary, pending: PendingFile, now: float) -> None:
    steps = f"{summary.steps} of {summary.total_steps}" if summary.total_steps else str(summary.steps)
    rollouts = "1 rollout" if pending.total == 1 else f"{pending.total} rollouts"
    status, path = summary.status or "no status", short_path(Path(summary.directory))
    click.echo(f"{path}: {status}, {steps} steps done, {rollouts} pending")
    if not pending.rows:
        return
    rows = [
        (
            harmless(one_line(row["rollout"], 60)),
            str(row["turn"]),
            harmless(one_line(f"{row['waits_for']} {row['name']}", 60)),
            f"{row['seconds']:.1f} s",
            "slow" if row["is_slow"] else "",
        )
        for row in pending_rows(pending.rows[:SHOWN], now)
    ]
    print_table(("rollout", "turn", "waits for", "time", ""), rows)
    if hidden := pending.total - len(rows):
        click.echo(f"{hidden} more are not shown.")
