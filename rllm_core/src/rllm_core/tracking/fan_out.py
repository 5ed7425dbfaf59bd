"""Trackers: sends every step's metrics to all trackers of a run and to its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import Tracker, TrackerPlugin
from rllm_core.plugins.choice import Chosen
from rllm_core.run_folder import RunFolder


class Trackers:
    """A tracker that fails is dropped with one warning; it never stops training. The run folder is no tracker: if it
    cannot be written, the run cannot be trusted and ends."""

    def __init__(
        self, chosen: Sequence[Chosen[TrackerPlugin[Any]]], folder: RunFolder, warn: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        for entry in chosen:
            self._guard(entry.plugin.name, partial(self._start, entry))

    @property
    def observers(self) -> list[Observer]:
        """The trackers that also watch the loop, such as the progress display."""
        return [tracker for tracker in self._trackers.values() if isinstance(tracker, Observer)]

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of one step."""
        self._folder.log(global_step, metrics)
        for name, tracker in list(self._trackers.items()):
            self._guard(name, partial(tracker.log, global_step, metrics))

    def close(self) -> None:
        for name, tracker in list(self._trackers.items()):
            self._guard(name, tracker.close)
        self._trackers.clear()

    def _start(self, entry: Chosen[TrackerPlugin[Any]]) -> None:
        self._trackers[entry.plugin.name] = entry.plugin.load()(self._folder.path, entry.params)

    def _guard(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (a tracker is never worth a run)
            self._trackers.pop(name, None)
            self._warn(f"tracker {name!r} failed and is switched off: {type(error).__name__}: {error}")
