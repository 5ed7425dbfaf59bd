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

from rllm_record.steps import RecordError, StepFiles
from rllm_record.steps.parquet import read_columns
from rllm_view.reading.record_files import FileState, outcome_files, state_of

TABLES = """
CREATE MACRO natural_key(words) AS array_to_string(list_transform(regexp_extract_all(words, '[0-9]+|[^0-9]+'),
    lambda part: CASE WHEN part[1] BETWEEN '0' AND '9'
        THEN printf('%04d', length(ltrim(part, '0'))) || ltrim(part, '0') ELSE part END), '');
CREATE TABLE trajectories (
    trajectory VARCHAR, episode VARCHAR, rollout_step INTEGER, batch INTEGER, task_id VARCHAR, data_source VARCHAR,
    is_correct BOOLEAN, termination_reason VARCHAR, error VARCHAR, tries INTEGER, name VARCHAR, reward_given DOUBLE,
    reward_used DOUBLE, turns INTEGER, sampled_tokens INTEGER, tokens INTEGER);
CREATE TABLE outcomes (
    step INTEGER, trajectory VARCHAR, outcome VARCHAR, rule VARCHAR, group_id VARCHAR, peers INTEGER, name VARCHAR,
    episode VARCHAR, rollout_step INTEGER, batch INTEGER, estimator VARCHAR, baseline DOUBLE, advantage DOUBLE,
    group_key VARCHAR, trajectory_key VARCHAR);
"""
"""Keys order text naturally: a number in it has its length before it, so 2 comes before 10."""
_OF_EPISODE = ("uid", "step", "batch", "task_id", "data_source", "is_correct", "termination_reason", "error", "tries")
_OF_TRAJECTORY = ("uid", "name", "reward_given", "reward_used")
_OF_TURN = ("response_start", "end")
_LEAVES = [
    *_OF_EPISODE,
    *(f"trajectories.list.element.{name}" for name in _OF_TRAJECTORY),
    *(f"trajectories.list.element.steps.list.element.{name}" for name in _OF_TURN),
]
_TRAJECTORIES = """
INSERT INTO trajectories
SELECT t.uid, e.uid, e.step, batch, task_id, data_source, is_correct, termination_reason, error, tries, t.name,
    t.reward_given, t.reward_used, len(t.steps),
    coalesce(list_sum(list_transform(t.steps, lambda turn: turn."end" - turn.response_start)), 0),
    coalesce(list_max(list_transform(t.steps, lambda turn: turn."end")), 0)
FROM (SELECT * EXCLUDE trajectories, unnest(trajectories) AS t FROM new_trajectories) e
"""
_OUTCOMES = """
INSERT INTO outcomes
SELECT step, trajectory, outcome, rule, "group", len(peers), name, episode, rollout_step, batch,
    estimator, baseline, advantage, natural_key("group"), natural_key(trajectory)
FROM new_outcomes
"""
_LATER = {"estimator": pa.string(), "baseline": pa.float64(), "advantage": pa.float64()}
"""Columns that older records do not have."""


def read_trajectories(record: Path, step: int) -> pa.Table:
    """Return the episodes of a step, without text and tokens.

    Raises:
        RecordError: the file cannot be read.
    """
    table = read_columns(StepFiles(record).place("episodes", step), _LEAVES)
    return table.select([*_OF_EPISODE, "trajectories"]).replace_schema_metadata(None)


def read_outcomes(record: Path, step: int) -> pa.Table:
    """Return the outcomes of a step's trajectories. Raises the errors of `read_trajectories`."""
    table = StepFiles(record).outcome_table(step)
    for name, type_ in _LATER.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), type_))
    wanted = ["step", "trajectory", "outcome", "rule", "group", "peers", "name", "episode", "rollout_step", "batch"]
    return table.select([*wanted, *_LATER])


def insert(connection: duckdb.DuckDBPyConnection, new_trajectories: pa.Table, new_outcomes: pa.Table) -> None:
    """Add rows to both tables."""
    connection.register("new_trajectories", new_trajectories)
    connection.register("new_outcomes", new_outcomes)
    try:
        connection.execute(_TRAJECTORIES)
        connection.execute(_OUTCOMES)
    finally:
        connection.unregister("new_trajectories")
        connection.unregister("new_outcomes")


FILES_AT_ONCE = 40
"""Number of files that are read before the lock is released for queries."""


class StepIndex:
    """An index of a run's record. It is safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        """Make an index of the run directory `directory`. This reads nothing yet."""
        self._record = directory / "record"
        self._connection = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "256MB"})
        self._connection.execute(TABLES)
        self._lock = threading.RLock()
        self._refreshing = threading.Lock()
        self._starting = threading.Lock()
        self._background: threading.Thread | None = None
        self._known: dict[int, FileState] = {}
        self._problems: dict[int, RecordError] = {}

    def refresh(self) -> None:
        """Read new and changed files, the latest steps first."""
        with self._refreshing:
            present = {step: state_of(file) for step, file in outcome_files(self._record).items()}
            with self._lock:
                known = dict(self._known)
            gone = [step for step in known if step not in present]
            changed = [step for step, state in present.items() if state != known.get(step)]
            self._remove(gone)
            changed.sort(reverse=True)
            for start in range(0, len(changed), FILES_AT_ONCE):
                self._take(changed[start : start + FILES_AT_ONCE], present)

    def refresh_for(self, seconds: float) -> None:
        """Refresh for at most `seconds`. A background thread reads the remaining files."""
        with self._starting:
            background = self._background
            if background is None or not background.is_alive():
                background = threading.Thread(target=self.refresh, name="rllm-view-index", daemon=True)
                background.start()
                self._background = background
        background.join(seconds)

    def ensure(self, steps: Iterable[int]) -> None:
        """Read these steps now, if they are recorded and not in the tables yet."""
        present = {step: state_of(file) for step, file in outcome_files(self._record).items()}
        with self._lock:
            missing = [step for step in steps if step in present and present[step] != self._known.get(step)]
        if missing:
            self._take(missing, present)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the result of a query over `trajectories` and `outcomes`, one dict per row.

        Raises:
            RecordError: the query fails.
        """
        with self._lock, _duckdb_errors():
            answer = self._connection.execute(query, list(parameters))
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def steps(self) -> list[int]:
        """Return the steps that are in the tables, in order."""
        with self._lock:
            return sorted(step for step in self._known if step not in self._problems)

    @property
    def problems(self) -> dict[int, RecordError]:
        """Step -> error, for steps whose files cannot be read."""
        with self._lock:
            return dict(self._problems)

    def close(self) -> None:
        """Free the memory of the tables."""
        with self._lock:
            self._connection.close()

    def _remove(self, steps: Iterable[int]) -> None:
        with self._lock:
            for step in steps:
                self._connection.execute("DELETE FROM outcomes WHERE step = ?", [step])
                self._connection.execute("DELETE FROM trajectories WHERE rollout_step = ?", [step])
                self._known.pop(step, None)
                self._problems.pop(step, None)

    def _take(self, steps: Sequence[int], present: dict[int, FileState]) -> None:
        generated, outcomes, problems = list[pa.Table](), list[pa.Table](), dict[int, RecordError]()
        for step in steps:
            try:
                of_step = read_trajectories(self._record, step), read_outcomes(self._record, step)
            except RecordError as error:
                problems[step] = error
            else:
                generated.append(of_step[0])
                outcomes.append(of_step[1])
        with self._lock:
            try:
                self._put(steps, generated, outcomes)
            except RecordError as error:
                problems = dict.fromkeys(steps, error)
            self._known.update({step: present[step] for step in steps})
            self._problems.update(problems)

    def _put(self, steps: Sequence[int], generated: Sequence[pa.Table], outcomes: Sequence[pa.Table]) -> None:
        with _duckdb_errors():
            self._remove(step for step in steps if step in self._known)
            if outcomes:
                insert(self._connection, pa.concat_tables(generated), pa.concat_tables(outcomes))


@contextmanager
def _duckdb_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise RecordError(
            "record-index-failed",
            f"The index of the record fails: {str(error).rstrip('.')}.",
            "Start the command again.",
        ) from error
