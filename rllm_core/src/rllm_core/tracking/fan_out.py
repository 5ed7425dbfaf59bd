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
        self._trackers: list[tuple[str, Tracker]] = []
        for entry in chosen:
            self._guard(entry.plugin.name, partial(self._start, entry))

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of one step."""
        self._folder.log(global_step, metrics)
        self._each(lambda tracker: tracker.log(global_step, metrics))

    def tell(self, event: str, *arguments: Any) -> None:
        """Pass an event of the loop on to the trackers that also watch it, such as the progress display."""
        self._each(lambda tracker: getattr(tracker, event)(*arguments) if isinstance(tracker, Observer) else None)

    def close(self) -> None:
        for name, tracker in self._trackers:
            self._guard(name, tracker.close)
        self._trackers.clear()

    def _each(self, action: Callable[[Tracker], None]) -> None:
        self._trackers = [
            (name, tracker) for name, tracker in self._trackers if self._guard(name, partial(action, tracker))
        ]

    def _start(self, entry: Chosen[TrackerPlugin[Any]]) -> None:
        self._trackers.append((entry.plugin.name, entry.registered.load()(self._folder.path, entry.params)))

    def _guard(self, name: str, action: Callable[[], None]) -> bool:
        """Whether the action went well."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  (a tracker is never worth a run)
            self._warn(f"tracker {name!r} failed and is switched off: {type(error).__name__}: {error}")
            return False
        return True
