"""Digests of the files of a run's checkpoints. They are kept after the checkpoints are deleted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import RllmError
from rllm_core.files import write_atomically
from rllm_record.journal.engine import JournalEngine
from rllm_record.journal.segments import Segments
from rllm_record.run_files import BACKEND, CHECKPOINTS, LATEST_CHECKPOINT, MANIFEST


class JournalParams(Params):
    """Options of the observer `journal`."""

    keep: Literal["unfinished", "run", "off"] = "unfinished"
    """Model calls to keep. `unfinished`: calls of steps that no checkpoint contains yet. `run`: calls of all steps, and
    a digest of each checkpoint, for `rllm replay`. `off`: none."""


DIRECTORY = "journal"
"""Name of the journal's directory in the run directory."""
FILE = "checkpoints.jsonl"


@dataclass(frozen=True, kw_only=True)
class CheckpointDigests:
    """Entry of a checkpoint of the run."""

    step: int
    """Number of finished steps."""
    taken: int
    """Last task batch that was used for training."""
    sha256: Mapping[str, str]
    """File of the backend -> its digest. The files contain weights, optimizer and critic."""


def append_checkpoint(run: Path, step: int, taken: int) -> None:
    """Add an entry for the latest checkpoint of a run."""
    line = json.dumps({"step": step, "taken": taken, "sha256": latest_digests(run)})
    with (run / DIRECTORY / FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def forget_checkpoints(run: Path, after: int) -> None:
    """Remove the entries of later steps, because the run repeats these steps.

    Raises:
        RllmError: a line is damaged.
    """
    path = run / DIRECTORY / FILE
    if path.is_file():
        kept = [asdict(checkpoint) for checkpoint in _read_entries(run) if checkpoint.step <= after]
        write_atomically(path, "".join(f"{json.dumps(checkpoint)}\n" for checkpoint in kept))


def checkpoint_steps(run: Path) -> set[int]:
    """Return the number of finished steps of each entry."""
    return {checkpoint.step for checkpoint in _read_entries(run)}


def latest_digests(run: Path) -> dict[str, str]:
    """Return file -> digest of the backend's files in the latest checkpoint of a run."""
    manifest = json.loads((run / CHECKPOINTS / LATEST_CHECKPOINT / MANIFEST).read_text(encoding="utf-8"))
    return {name: digest for name, digest in manifest["sha256"].items() if name.startswith(f"{BACKEND}/")}


def read_checkpoints(run: Path) -> dict[int, CheckpointDigests]:
    """Return the checkpoints of a run by number of finished steps. If a checkpoint was repeated, return the last.

    Raises:
        RllmError: the run has no journal of all its task batches, or no checkpoint yet.
    """
    noted = _read_entries(run)
    if not noted:
        raise RllmError(
            "no-journal",
            f"{run} has no journal of a whole run with a checkpoint.",
            "Train with `rllm.trainer.observers=[{name: journal, keep: run}]`.",
        )
    return {checkpoint.step: checkpoint for checkpoint in noted}


def _read_entries(run: Path) -> list[CheckpointDigests]:
    path = run / DIRECTORY / FILE
    # Ignore the last line if it has no line end, because it is incomplete.
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    try:
        return [CheckpointDigests(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise RllmError(
            "damaged-file",
            f"{path} contains a damaged line: {error}.",
            "Copy the file back from a backup, or start a new run with --overwrite.",
        ) from error


def make_journal(params: JournalParams) -> Observer:
    """Make the journal of a run. With ``keep: off``, the observer does nothing."""
    kept = {"off": Observer, "unfinished": Journal, "run": WholeJournal}
    return kept[params.keep]()


class Journal(Observer):
    """Stores finished calls in the run directory, until a checkpoint contains the update with their task batch."""

    def __init__(self) -> None:
        self._run: TrackedRun | None = None
        self._engine: JournalEngine | None = None
        self._segments: Segments | None = None
        self._version = 0
        self._taken = -1
        """Last task batch that was used for training."""
        self._required: dict[int, int] = {}

    @property
    def can_replay(self) -> bool:
        return True

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        self._run, self._engine = run, JournalEngine(engine)
        return self._engine

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._version, self._taken = state["version"], state["taken"]
        self._required = {int(batch): count for batch, count in state["records"].items()}

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
            for batch in range(self._taken + 1, step.task_batch + 1):
                self._engine.forget(batch)
        self._taken = step.task_batch

    def state_dict(self) -> dict[str, Any]:
        if self._segments is None:
            return {}
        self._segments.sync()
        return {"version": self._version, "taken": self._taken, "records": self._segments.counts(self._taken)}

    def on_checkpoint(self, finished_steps: int, first_batch: int) -> None:
        if self._segments is not None:
            self._segments.drop_before(first_batch)

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
            if first_step and first_step not in checkpoint_steps(self._run.directory):
                append_checkpoint(self._run.directory, first_step, self._taken)

    def on_checkpoint(self, finished_steps: int, first_batch: int) -> None:
        if self._run is not None:
            append_checkpoint(self._run.directory, finished_steps, self._taken)


def digest_of_config(run: TrackedRun) -> str:
    """Return a digest of the run's config. It changes if any value of the config changes."""
    return sha256(json.dumps(run.config, sort_keys=True, default=str).encode()).hexdigest()
