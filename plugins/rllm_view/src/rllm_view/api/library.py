"""Library: the runs in some directories, each opened once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from rllm_core.errors import RllmError
from rllm_record.run_places import find_runs
from rllm_view.reading.run import Run


class NotFoundError(RllmError):
    """The requested object does not exist."""


class Library:
    """Runs in some directories, including runs that start later. Safe to use from several threads."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = [directory.absolute() for directory in directories]
        self._runs: dict[str, Run] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[Run]:
        """Return the existing runs, in order of their paths."""
        places = find_runs(self._directories)
        with self._lock:
            gone = self._runs.keys() - {place.id for place in places}
            for id in gone:
                # Another thread may be reading this run. Its memory is freed with the last reference.
                del self._runs[id]
            for place in places:
                if place.id not in self._runs:
                    self._runs[place.id] = Run(place)
            return [self._runs[place.id] for place in places]

    def run(self, id: str) -> Run:
        """Return the run with an id. Raise NotFoundError if it does not exist."""
        with self._lock:
            known = self._runs.get(id)
        found = known or next((run for run in self.runs() if run.place.id == id), None)
        if found is None:
            raise NotFoundError(
                "run-not-found", "This run does not exist any more, or this view shows other directories."
            )
        return found

    def close(self) -> None:
        """Free the memory of all runs."""
        with self._lock:
            for run in self._runs.values():
                run.close()
            self._runs.clear()
