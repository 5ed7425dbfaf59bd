"""The tracker `sqlite_metrics`: write the metrics of a run to a SQLite database, with the library sqlite-utils."""

from __future__ import annotations

from collections.abc import Mapping

from rllm_core.contracts import Observer, TrackedRun
from sqlite_utils import Database

from sqlite_metrics.options import SqliteMetricsParams

TABLE = "metrics"


class SqliteMetrics(Observer):
    """Write one row per step and metric. `datasette run.db` or `sqlite-utils rows run.db metrics` shows them."""

    def __init__(self, run: TrackedRun, params: SqliteMetricsParams) -> None:
        self._path = run.directory / params.file
        self._database: Database | None = None

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        """Delete the metrics that a resumed run logs again. A run from the start logs everything again."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        database = Database(self._path)
        columns = {"step": int, "metric": str, "value": float}
        database[TABLE].create(columns, pk=("step", "metric"), if_not_exists=True)
        database[TABLE].delete_where("step >= ?", [first_step])
        database.conn.commit()
        self._database = database

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        assert self._database is not None, "a run starts before it logs"
        rows = ({"step": global_step, "metric": name, "value": float(value)} for name, value in metrics.items())
        self._database[TABLE].insert_all(rows, replace=True)
        self._database.conn.commit()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
