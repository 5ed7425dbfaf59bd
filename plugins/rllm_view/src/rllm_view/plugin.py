"""The tracker `report`, in every run; stored episodes as training data: a dataset and a stage, both named `stored`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl
from rllm_view.rescoring.stored.options import StoredParams

requires_api = 1


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="report",
        summary="report.html in the run directory: the pages of `rllm view` as one file, in every run.",
        params=NoParams,
        load=load_from("rllm_view.report", "ReportTracker"),
        every_run=True,
    )


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="stored",
        summary="Tasks of stored episodes, with the rollouts that the stage `stored` trains on.",
        params=StoredParams,
        load=load_from("rllm_view.rescoring.stored.dataset", "read_stored"),
    )


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="stored",
        summary="Load the stored rollouts of each task instead of generating them.",
        load=load_from("rllm_view.rescoring.stored.stage", "BringStored"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes"}),
        config_keys=frozenset({"sampling.train.temperature"}),
        off_policy=True,
    )
