"""The options of the tracker `record`, and its factory, which imports pyarrow only if the run has a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun, Tracker


class RecordParams(Params):
    """Options of the tracker `record`."""

    record: Literal["off", "outcomes", "tokens"] = "outcomes"
    """Contents of the run's record. `outcomes`: the ids, rewards and outcome of each trajectory, and the rule that
    dropped it. `tokens`: its text and tokens too. `off`: no record."""


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
