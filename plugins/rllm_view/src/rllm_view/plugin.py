"""What rllm-view offers: the tracker `report`, in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.plugins import hookimpl

requires_api = 1


def _report() -> Callable[..., Any]:
    from rllm_view.report import ReportTracker

    return ReportTracker


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="report",
        summary="report.html in the run folder: the pages of `rllm view` as one file, in every run.",
        params=NoParams,
        load=_report,
        every_run=True,
    )
