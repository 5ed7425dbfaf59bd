"""Plugin specs of rllm-record: the tracker `record`, the observer `journal`, and stored episodes as training data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.objective import ObjectiveFlag, ObjectivePlugin
from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.contracts.plugin import Params
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.tracker import TrackedRun, Tracker, TrackerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

requires_api = 1


class JournalParams(Params):
    """Options of the observer `journal`."""

    keep: Literal["unfinished", "run", "off"] = Field(
        "unfinished",
        description="Model calls to keep. `unfinished`: calls of steps that no checkpoint contains yet. `run`: calls "
        "of all steps, and a digest of each checkpoint, for `rllm replay`. `off`: none.",
    )


class RecordParams(Params):
    """Options of the tracker `record`."""

    record: Literal["off", "outcomes", "tokens"] = Field(
        "outcomes",
        description="Contents of the run's record. `outcomes`: the ids, rewards and outcome of each trajectory, and "
        "the rule that dropped it. `tokens`: its text and tokens too. `off`: no record.",
    )


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


class NoRecorder:
    """Tracker that records nothing."""

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing. The run directory already contains the metrics."""

    def close(self) -> None:
        """Do nothing, because no file is open."""


def make_recorder(run: TrackedRun, params: RecordParams) -> Tracker:
    """Make the recorder of a run. With ``record: off``, it records nothing, and pyarrow is not imported."""
    if params.record == "off":
        return NoRecorder()
    from rllm_record.recorder import Recorder

    return Recorder(run, params.record)


def _generates_ahead(config: RunConfig) -> bool:
    return config.rllm.async_training.staleness > 0


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="record",
        summary="Rollouts and their outcomes, in two Parquet files per step. Added to every run.",
        params=RecordParams,
        load=lambda: make_recorder,
        every_run=True,
    )


@hookimpl
def rllm_observers() -> Iterable[ObserverPlugin[Any]]:
    yield ObserverPlugin(
        name="journal",
        summary="Stores finished model calls, so that a resumed run does not repeat them. Added to asynchronous runs.",
        params=JournalParams,
        load=load_from("rllm_record.journal.observer", "make_journal"),
        joins=_generates_ahead,
    )


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="stored",
        summary="Tasks of stored episodes, with the rollouts that the stage `stored` trains on.",
        params=StoredParams,
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


def _read_directory(path: str) -> dict[str, str]:
    return {"name": "stored", "path": path}


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
        flag=ObjectiveFlag(name="stored", metavar="DIRECTORY", key="data.train_dataset", value=_read_directory),
    )
