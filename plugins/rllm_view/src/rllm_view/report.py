"""The tracker `report`: report.html in the run directory, the pages of the run as one file."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_record.run_files import REPORT
from rllm_view.reading.run import ChangedValue, leaves
from rllm_view.static import write_page

EPISODES = 32
"""Number of episodes with tokens in the page of a finished run: two groups of the demo, half a second of CPU."""


class ReportTracker(Observer):
    """Writes the page after 1, 2, 4, 8, … steps, and when the run finishes or fails.

    So a page is never older than half of the run, and long runs also write few pages.
    """

    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        self._directory = run.directory
        self._given = _list_changed_values(run)
        self._began = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Record that the directory's files now belong to this run."""
        self._began = True

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Write a report after some steps. Validations are not steps; `close` writes their metrics."""
        finished = global_step + 1
        if finished > 0 and finished & (finished - 1) == 0 and "train/weight_version" in metrics:
            self._write(episodes=0)

    def close(self) -> None:
        """Write the whole page, with trajectories."""
        if self._began:
            self._write(EPISODES)

    def _write(self, episodes: int) -> None:
        write_page([self._directory], self._directory / REPORT, episodes, self._given)


def _list_changed_values(run: TrackedRun) -> list[ChangedValue]:
    """Return the values that are not the core's defaults, including values of a recipe."""
    origins = run.origins
    return [
        ChangedValue(key=key, value=json.dumps(value), origin=origins[key])
        for key, value in leaves(run.config)
        if origins.get(key, "default") != "default"
    ]
