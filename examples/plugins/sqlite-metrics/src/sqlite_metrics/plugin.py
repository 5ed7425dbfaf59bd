"""Plugin specs of sqlite-metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts import TrackerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="sqlite_metrics",
        summary="A SQLite database with a row for each step and metric.",
        load_params=load_from("sqlite_metrics.options", "SqliteMetricsParams"),
        load=load_from("sqlite_metrics.tracker", "SqliteMetrics"),
    )
