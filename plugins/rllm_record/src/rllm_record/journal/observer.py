"""The observer `journal`: a resumed run does not repeat finished model calls."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_record.journal.checkpoints import DIRECTORY, append_checkpoint, forget_checkpoints, noted_steps
from rllm_record.journal.engine import JournalEngine
from rllm_record.journal.segments import Segments
from rllm_record.options import JournalParams


def make_journal(params: JournalParams) -> Observer:
    """Make the journal of a run. With ``keep: off``, the observer does nothing."""
    kept = {"off": Observer, "unfinished": Journal, "run": WholeJournal}
    return kept[params.keep]()


class Journal(Observer):
    """Stores finished calls in the run folder, until a checkpoint contains the update with their task batch."""

    def __init__(self) -> None:
        self._run: TrackedRun | None = None
        self._engine: JournalEngine | None = None
        self._segments: Segments | None = None
        self._version = 0
        self._taken = -1
        """Last task batch that was used for training."""
        self._required: dict[int, int] = {}

    @property
    def answers_again(self) -> bool:
        return True

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        self._run, self._engine = run, JournalEngine(engine)
        return self._engine

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._version, self._taken = state["version"], state["taken"]
        self._required = {int(round): count for round, count in state["records"].items()}

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        if self._run is None or self._engine is None:
            return
        # Not earlier, because a run that this run replaces is removed only now.
        self._segments = Segments(self._run.directory / DIRECTORY, digest_of_config(self._run))
        self._segments.require(self._required)
        self._engine.open(self._segments, self._version)

    def on_policy_updated(self, step: TrainStep) -> None:
        self._version = step.weight_version

    def on_batch_end(self, step: TrainStep) -> None:
        if self._engine is not None:
            for round in range(self._taken + 1, step.task_batch + 1):
                self._engine.forget(round)
        self._taken = step.task_batch

    def state_dict(self) -> dict[str, Any]:
        if self._segments is None:
            return {}
        self._segments.sync()
        return {"version": self._version, "taken": self._taken, "records": self._segments.counts(self._taken)}

    def on_checkpoint(self, finished_steps: int, first_round: int) -> None:
        if self._segments is not None:
            self._segments.drop_before(first_round)

    def on_train_end(self, global_step: int) -> None:
        if self._segments is not None:
            self._segments.close()


class WholeJournal(Journal):
    """Stores the calls of all task batches, and the digests of each checkpoint."""

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        super().on_train_start(total_steps, first_step)
        if self._run is not None:
            forget_checkpoints(self._run.directory, first_step)
            # If the run was killed after a checkpoint and before its entry here, add the entry now.
            if first_step and first_step not in noted_steps(self._run.directory):
                append_checkpoint(self._run.directory, first_step, self._taken)

    def on_checkpoint(self, finished_steps: int, first_round: int) -> None:
        if self._run is not None:
            append_checkpoint(self._run.directory, finished_steps, self._taken)


def digest_of_config(run: TrackedRun) -> str:
    """Return a digest of the run's config. It changes if any value of the config changes."""
    return sha256(json.dumps(run.config, sort_keys=True, default=str).encode()).hexdigest()
