"""Plugin specs of rllm-record: the tracker `record` for every run, and the observer `journal` for asynchronous runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.contracts.plugin import Params
from rllm_core.contracts.tracker import TrackerPlugin
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


def _generates_ahead(config: RunConfig) -> bool:
    return config.rllm.async_training.staleness > 0


@hookimpl
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="record",
        summary="Rollouts and their outcomes, in two Parquet files per step. Added to every run.",
        params=RecordParams,
        load=load_from("rllm_record.recorder", "make_recorder"),
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
