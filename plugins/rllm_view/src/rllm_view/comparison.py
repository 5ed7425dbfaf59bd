"""Comparison of two or more runs: the users' settings, and the results at each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rllm_core.errors import ConfigError
from rllm_view.reading.run import Run

MOST_RUNS = 8
MOST_TASKS = 200
_PLACES = ("rllm.trainer.experiment_name", "rllm.trainer.output_dir", "rllm.trainer.project_name")
"""Keys that differ between any two runs."""
_TASKS = """
SELECT task_id, count(*) AS rollouts, avg(is_correct::INTEGER) AS solved, avg(reward_given) AS reward
FROM trajectories WHERE list_contains(?, rollout_step) GROUP BY task_id
"""


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the differences between runs. Raise ConfigError for fewer than two or too many runs."""
    if not 2 <= len(runs) <= MOST_RUNS:
        raise ConfigError("bad-query", f"{len(runs)} runs cannot be compared.", f"Choose 2 to {MOST_RUNS} runs.")
    for run in runs:
        run.index.refresh_for(1.0)
    steps = common_steps(runs)
    return {
        "runs": [run.summary() for run in runs],
        "settings": different_settings(runs),
        "problems": [run.problems() for run in runs],
        "compared_steps": len(steps),
        "tasks": tasks_of(runs, steps),
    }


def common_steps(runs: Sequence[Run]) -> list[int]:
    """Return the steps that are readable in all runs, in order."""
    return sorted(set.intersection(*(set(run.index.steps()) for run in runs)))


def different_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the keys whose values differ, with their values in each run. None: the run does not have the key."""
    values = [run.settings().values for run in runs]
    keys = sorted({key for each in values for key in each} - {*_PLACES})
    rows = [{"key": key, "values": [each.get(key) for each in values]} for key in keys]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def tasks_of(runs: Sequence[Run], steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return each run's share solved and mean reward at the tasks of `steps` that all runs have.

    Tasks with the largest difference come first.
    """
    by_run = [{row["task_id"]: row for row in run.index.rows(_TASKS, [list(steps)])} for run in runs]
    common = set.intersection(*(set(each) for each in by_run))
    rows = [{"task": task, "runs": [each[task] for each in by_run]} for task in common]
    rows.sort(key=lambda row: (-_spread(row["runs"]), str(row["task"])))
    return rows[:MOST_TASKS]


def _spread(cells: Sequence[dict[str, Any]]) -> float:
    shares = [cell["solved"] or 0.0 for cell in cells]
    return float(max(shares) - min(shares))
