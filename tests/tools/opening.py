"""Opens files of episodes as `rllm view` does, and returns the values that its pages show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rllm_record.run_files import find_runs
from rllm_view.episode_files import as_runs
from rllm_view.reading.rollout import read_rollout
from rllm_view.reading.rollouts import Filter, find_rollouts
from rllm_view.reading.run import Run


@dataclass(frozen=True)
class Shown:
    """A trajectory on its page."""

    task: str
    reward: float | None
    prompts: list[list[tuple[str, str]]]
    """Role and text of the messages before each response."""
    responses: list[str | None]


def open_file(path: Path) -> list[Shown]:
    """Return the trajectories of a file, in the order of their uids."""
    shown: list[Shown] = []
    with as_runs([path]) as places:
        for place in find_runs(places):
            run = Run(place)
            run.index.refresh()
            rows = find_rollouts(run.index, Filter(limit=1000)).rows
            assert run.problems() == []
            for row in sorted(rows, key=lambda each: each.trajectory):
                rollout = read_rollout(run.record, row.rollout_step, row.trajectory)
                shown.append(
                    Shown(
                        rollout.task_id,
                        rollout.reward_given,
                        [[(each.role, each.text) for each in turn.observations or ()] for turn in rollout.turns],
                        [turn.text for turn in rollout.turns],
                    )
                )
            run.close()
    return shown
