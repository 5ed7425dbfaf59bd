"""The contract of every tracker, and the database of this one."""

from pathlib import Path

import pytest

pytest.importorskip("sqlite_utils", reason="sqlite-utils is not installed: pip install sqlite-utils")

from rllm_core.contracts import TrackedRun
from rllm_plugin_kit import TrackerContract
from sqlite_utils import Database

from sqlite_metrics.options import SqliteMetricsParams
from sqlite_metrics.tracker import TABLE, SqliteMetrics


class TestSqliteMetrics(TrackerContract):
    name = "sqlite-metrics/sqlite_metrics"
    options = ({}, {"file": "deep/down.db"})

    def read_back(self, directory: Path) -> list[tuple[int, dict[str, float]]]:
        """Return the written metrics, so that the contract can check that each is there once."""
        (file,) = directory.rglob("*.db")
        rows = list(Database(file)[TABLE].rows_where(order_by="rowid"))
        return [(row["step"], {row["metric"]: row["value"]}) for row in rows]


def test_resumed_run_replaces_its_later_steps(tmp_path: Path) -> None:
    run = TrackedRun(directory=tmp_path, project_name="project", experiment_name="experiment", config={})
    for first_step, reward in ((0, 0.25), (1, 0.5)):
        tracker = SqliteMetrics(run, SqliteMetricsParams())
        tracker.on_train_start(total_steps=2, first_step=first_step)
        for step in range(first_step, 2):
            tracker.log(step, {"reward/agent/mean": reward})
        tracker.close()

    assert [row["value"] for row in Database(tmp_path / "metrics.db")[TABLE].rows] == [0.25, 0.5]
