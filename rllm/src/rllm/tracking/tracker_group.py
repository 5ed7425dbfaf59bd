"""Trackers: sends every step's metrics to all trackers of a run and to its directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rllm.runs.run_directory import RunDirectory
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun, Tracker, TrackerPlugin
from rllm_core.notices import one_line


class Trackers:
    """A tracker that fails is dropped with one warning; it never stops training. The run directory is no tracker: if it
    cannot be written, the run cannot be trusted and ends.

    Raises:
        PluginError: a tracker cannot be loaded. A package that is not installed is a mistake to be told of before
            hours of training, not bad luck on the way.
    """

    def __init__(
        self,
        chosen: Sequence[PluginChoice[TrackerPlugin[Any]]],
        directory: RunDirectory,
        run: TrackedRun,
        warn: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._warn = warn
        self._trackers: list[tuple[str, Tracker]] = []
        # All are loaded before any is made, so that none has to be closed when another cannot be loaded.
        factories = [(entry, entry.registered.load()) for entry in chosen]
        for entry, make in factories:
            self._guard(entry.plugin.name, partial(self._make, entry, make, run))

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of one step."""
        self._directory.log(global_step, metrics)
        self._each(lambda tracker: tracker.log(global_step, metrics))

    def notify(self, event: str, *arguments: Any) -> None:
        """Pass an event of the loop on to the trackers that also watch it, such as the progress display."""
        self._each(lambda tracker: getattr(tracker, event)(*arguments) if isinstance(tracker, Observer) else None)

    def close(self) -> None:
        """Close the trackers that have not failed before. A second call does nothing."""
        for name, tracker in self._trackers:
            self._guard(name, tracker.close)
        self._trackers = []

    def _each(self, action: Callable[[Tracker], None]) -> None:
        working = []
        for name, tracker in self._trackers:
            if self._guard(name, partial(action, tracker)):
                working.append((name, tracker))
            else:
                # Close it, so that it keeps its data so far. Its failure was reported already.
                with contextlib.suppress(Exception, SystemExit):
                    tracker.close()
        self._trackers = working

    def _make(
        self, entry: PluginChoice[TrackerPlugin[Any]], make: Callable[[TrackedRun, Any], Tracker], run: TrackedRun
    ) -> None:
        self._trackers.append((entry.plugin.name, make(run, entry.params)))

    def _guard(self, name: str, action: Callable[[], None]) -> bool:
        """Run an action of a tracker, and return False if it failed. A client's `sys.exit` counts as a failure."""
        try:
            action()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (a failing tracker must not stop the run)
            reason = one_line(f"{type(error).__name__}: {error}")
            self._warn(f"tracker {name!r} failed and is switched off: {reason}")
            return False
        return True
