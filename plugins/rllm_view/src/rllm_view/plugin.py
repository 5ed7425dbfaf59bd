"""Plugin spec of the tracker `report`, which joins every run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="report",
        summary="report.html in the run directory: the pages of `rllm view` as one file, in every run.",
        load=load_from("rllm_view.report", "ReportTracker"),
        every_run=True,
    )
