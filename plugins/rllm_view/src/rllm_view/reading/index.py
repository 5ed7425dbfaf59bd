"""StepIndex: rollouts and outcomes of all steps of a run, as two tables in memory that follow the record's files.

Text and tokens stay in the files, so 100,000 trajectories need only some tens of megabytes of memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from rllm_record.steps import RecordError
from rllm_view.reading import index_rows
from rllm_view.reading.record_files import FileState, fate_files, state_of

FILES_AT_ONCE = 40
"""Between two times that others may ask."""


class StepIndex:
    """Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Make an index of the run folder `folder`. This reads nothing yet."""
        self._record = folder / "record"
        self._connection = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "256MB"})
        self._connection.execute(index_rows.TABLES)
        self._lock = threading.RLock()
        self._refreshing = threading.Lock()
        self._starting = threading.Lock()
        self._background: threading.Thread | None = None
        self._known: dict[int, FileState] = {}
        self._problems: dict[int, RecordError] = {}

    def refresh(self) -> None:
        """Take in the files that are new or have changed, the newest steps first."""
        with self._refreshing:
            present = {step: state_of(file) for step, file in fate_files(self._record).items()}
            with self._lock:
                known = dict(self._known)
            gone = [step for step in known if step not in present]
            changed = [step for step, state in present.items() if state != known.get(step)]
            self._remove(gone)
            changed.sort(reverse=True)
            for start in range(0, len(changed), FILES_AT_ONCE):
                self._take(changed[start : start + FILES_AT_ONCE], present)

    def refresh_for(self, seconds: float) -> None:
        """Refresh for that long at most; what is missing then is taken in behind the caller's back."""
        with self._starting:
            background = self._background
            if background is None or not background.is_alive():
                background = threading.Thread(target=self.refresh, name="rllm-view-index", daemon=True)
                background.start()
                self._background = background
        background.join(seconds)

    def ensure(self, steps: Iterable[int]) -> None:
        """Take in these steps now, where they are recorded and are not in the tables yet."""
        present = {step: state_of(file) for step, file in fate_files(self._record).items()}
        with self._lock:
            missing = [step for step in steps if step in present and present[step] != self._known.get(step)]
        if missing:
            self._take(missing, present)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The answer to a query over `played` and `outcomes`, one dict per row.

        Raises:
            RecordError: the tables cannot answer it.
        """
        with self._lock, _duckdb_errors():
            answer = self._connection.execute(query, list(parameters))
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def steps(self) -> list[int]:
        """Steps that are in the tables, in order."""
        with self._lock:
            return sorted(step for step in self._known if step not in self._problems)

    @property
    def problems(self) -> dict[int, RecordError]:
        """By step, why its files cannot be read."""
        with self._lock:
            return dict(self._problems)

    def close(self) -> None:
        """Free the tables."""
        with self._lock:
            self._connection.close()

    def _remove(self, steps: Iterable[int]) -> None:
        with self._lock:
            for step in steps:
                self._connection.execute("DELETE FROM fates WHERE step = ?", [step])
                self._connection.execute("DELETE FROM played WHERE played_step = ?", [step])
                self._known.pop(step, None)
                self._problems.pop(step, None)

    def _take(self, steps: Sequence[int], present: dict[int, FileState]) -> None:
        played, outcomes, problems = list[pa.Table](), list[pa.Table](), dict[int, RecordError]()
        for step in steps:
            try:
                of_step = index_rows.played(self._record, step), index_rows.outcomes(self._record, step)
            except RecordError as error:
                problems[step] = error
            else:
                played.append(of_step[0])
                outcomes.append(of_step[1])
        with self._lock:
            try:
                self._put(steps, played, outcomes)
            except RecordError as error:
                problems = dict.fromkeys(steps, error)
            self._known.update({step: present[step] for step in steps})
            self._problems.update(problems)

    def _put(self, steps: Sequence[int], played: Sequence[pa.Table], outcomes: Sequence[pa.Table]) -> None:
        with _duckdb_errors():
            self._remove(steps)
            if outcomes:
                index_rows.insert(self._connection, pa.concat_tables(played), pa.concat_tables(outcomes))


@contextmanager
def _duckdb_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise RecordError(
            "record-index-failed",
            f"The tables of a record in memory do not answer: {str(error).rstrip('.')}.",
            "Start the command again.",
        ) from error
