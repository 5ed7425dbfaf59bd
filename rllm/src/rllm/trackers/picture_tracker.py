"""The tracker `picture`, which draws a run's reward curve."""

from __future__ import annotations

from collections.abc import Mapping

from rllm.runs.metrics_file import read_metrics
from rllm.runs.run_directory import PICTURE
from rllm.trackers.picture import draw_reward_curve
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun


class PictureTracker(Observer):
    """Tracker that draws the reward curve when the run ends, even after an error."""

    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        self._run = run
        self._began = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Record that the folder's files belong to this run from now on."""
        self._began = True

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing, because the run folder contains all metrics."""

    def close(self) -> None:
        if not self._began:
            return  # the files in the folder belong to another run
        directory = self._run.directory
        draw_reward_curve(read_metrics(directory), directory / PICTURE, self._run.experiment_name)
