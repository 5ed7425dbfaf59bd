"""The tracker `report`, in every run; stored episodes as training data: a dataset and a stage, both named `stored`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.objective import ObjectiveFlag, ObjectivePlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


class StoredParams(Params):
    """Options of the dataset ``stored``."""

    path: str = Field(
        min_length=1,
        description="Directory of a run with `rllm.record=tokens`, or file of its episodes.",
    )
    group_by: Literal["step", "task"] = Field(
        "step",
        description="Rollouts of a task to compare. `step`: rollouts from one step, so from one policy. `task`: "
        "rollouts from all steps.",
    )
    min_reward: float | None = Field(
        None, description="Smallest reward of a rollout to use. null: all rollouts, also those without a reward."
    )


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
        load=load_from("rllm_view.rescoring.stored", "read_stored"),
    )


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="stored",
        summary="Load the stored rollouts of each task instead of generating them.",
        load=load_from("rllm_view.rescoring.stored", "BringStored"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes"}),
        config_keys=frozenset({"sampling.train.temperature"}),
        off_policy=True,
    )


def _read_directory(path: str) -> dict[str, str]:
    return {"name": "stored", "path": path}


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    yield ObjectivePlugin(
        name="stored",
        summary="Train on stored episodes, instead of new rollouts (off-policy).",
        stage="rllm-view/stored",
        defaults={
            "rllm.pipeline.replace": {"generate": "stored"},
            # Weights other than the trained ones sampled stored tokens.
            "rllm.algorithm.rollout_correction.tis_mode": "token",
        },
        flag=ObjectiveFlag(name="stored", metavar="DIRECTORY", key="data.train_dataset", value=_read_directory),
    )
