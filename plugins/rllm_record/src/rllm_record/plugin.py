"""Plugin specs of rllm-record: the tracker `record`, the observer `journal`, and stored episodes as training data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.objective import ObjectiveFlag, ObjectivePlugin
from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="record",
        summary="Rollouts and their outcomes, in two Parquet files per step. Added to every run.",
        load_params=load_from("rllm_record.tracker", "RecordParams"),
        load=load_from("rllm_record.tracker", "make_recorder"),
        every_run=True,
    )


@hookimpl
def rllm_observers() -> Iterable[ObserverPlugin[Any]]:
    yield ObserverPlugin(
        name="journal",
        summary="Stores finished model calls, so that a resumed run does not repeat them. Added to asynchronous runs.",
        load_params=load_from("rllm_record.journal.observer", "JournalParams"),
        load=load_from("rllm_record.journal.observer", "make_journal"),
        joins=lambda config: config.rllm.async_training.staleness > 0,
    )


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="stored",
        summary="Tasks of stored episodes, with the rollouts that the stage `stored` trains on.",
        load_params=load_from("rllm_record.stored", "StoredParams"),
        load=load_from("rllm_record.stored", "read_tasks"),
    )


@hookimpl
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    yield StagePlugin(
        name="stored",
        summary="Load the stored rollouts of each task instead of generating them.",
        load=load_from("rllm_record.stored", "LoadStored"),
        reads=frozenset({"tasks"}),
        writes=frozenset({"episodes"}),
        config_keys=frozenset({"sampling.train.temperature"}),
        off_policy=True,
    )


@hookimpl
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    yield ObjectivePlugin(
        name="stored",
        summary="Train on stored episodes, instead of new rollouts (off-policy).",
        stage="rllm-record/stored",
        defaults={
            "rllm.pipeline.replace": {"generate": "stored"},
            # Weights other than the trained ones sampled stored tokens.
            "rllm.algorithm.rollout_correction.tis_mode": "token",
        },
        flag=ObjectiveFlag(
            name="stored",
            metavar="DIRECTORY",
            key="data.train_dataset",
            value=lambda path: {"name": "stored", "path": path},
        ),
    )
