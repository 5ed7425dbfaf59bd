"""What rllm-record offers: the tracker `record`, in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.plugins import hookimpl
from rllm_record.options import RecordParams

requires_api = 1


def _recorder() -> Callable[..., Any]:
    from rllm_record.recorder import make_recorder

    return make_recorder


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="record",
        summary="What was played and what became of it, a pair of Parquet files per step, in every run.",
        params=RecordParams,
        load=_recorder,
        every_run=True,
    )
