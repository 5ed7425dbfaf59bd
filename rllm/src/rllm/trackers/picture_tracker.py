"""The tracker `picture`: the reward curve of a run as an image."""

from __future__ import annotations

from collections.abc import Mapping

from rllm.runs.metrics_file import read_metrics
from rllm.runs.run_directory import PICTURE
from rllm.trackers.picture import draw_reward_curve
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun


class PictureTracker(Observer):
    """Draws it when the run ends, however it ends."""

    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        self._run = run
        self._began = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """From here on what lies in the folder is this run's."""
        self._began = True

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Everything is in the run folder by then."""

    def close(self) -> None:
        if not self._began:
            return  # what lies in the folder is another run's
        directory = self._run.directory
        draw_reward_curve(read_metrics(directory), directory / PICTURE, self._run.experiment_name)
