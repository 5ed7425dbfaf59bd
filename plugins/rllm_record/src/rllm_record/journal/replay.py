"""Replay: repeat the updates of a run with the responses in its journal, and compare the weights."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rllm_core import AgentTrainer, build_train_config
from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun
from rllm_record.journal.engine import fail_again
from rllm_record.journal.observer import DIRECTORY, CheckpointDigests, latest_digests, read_checkpoints
from rllm_record.journal.records import (
    CONFIG,
    JournalError,
    StoredCall,
    StoredFailure,
    checksum_of_call,
    decode_call,
    read_frames,
)
from rllm_record.journal.segments import path_of_batch

OVERRIDES = (
    "rllm.trainer.observers=[{name: journal, keep: off}]",
    "rllm.trainer.logger=[]",
    "rllm.trainer.keep_checkpoints=2",
    "rllm.record=off",
    "rllm.episode_logging.log_episodes=false",
)
"""A replay writes only checkpoints, because nothing else is compared."""


@dataclass(frozen=True, kw_only=True)
class CheckpointComparison:
    """Comparison of a run's checkpoint with the checkpoint of its replay."""

    step: int
    """Number of finished steps."""
    differing: tuple[str, ...]
    """Files of the backend that differ. Empty if none differs."""


def replay(run: Path, report: Callable[[CheckpointComparison], None]) -> list[CheckpointComparison]:
    """Repeat the updates of a run, up to its last checkpoint, without sampling and validation.

    Args:
        run: directory of the run, which is only read.
        report: called after each comparison of a checkpoint.

    Raises:
        RllmError: the run has no journal of all its task batches, or cannot be repeated on this machine.
        JournalError: a record is damaged, or the journal does not contain a call of the replay.
    """
    replayer = _Replayer(run, read_checkpoints(run), report)
    with tempfile.TemporaryDirectory(prefix="rllm-replay-") as directory:
        overrides = [*OVERRIDES, f"rllm.trainer.output_dir={directory}"]
        config = build_train_config(config_file=run / "config.yaml", overrides=overrides)
        with contextlib.suppress(_DoneError):
            AgentTrainer(config=config, observers=[replayer]).train()
    return replayer.found


class _DoneError(Exception):
    """Ends the replay after the last checkpoint. The journal may lack calls of later steps."""


class _Replayer(Observer):
    def __init__(
        self, run: Path, checkpoints: dict[int, CheckpointDigests], report: Callable[[CheckpointComparison], None]
    ) -> None:
        self.found = list[CheckpointComparison]()
        self._run = run
        self._checkpoints = checkpoints
        self._report = report
        self._replayed = Path()

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        self._replayed = run.directory
        return ReplayEngine(engine, self._run, self._checkpoints[max(self._checkpoints)].taken)

    def on_validation_start(self, global_step: int) -> bool:
        return False

    def on_checkpoint(self, finished_steps: int, first_batch: int) -> None:
        kept = self._checkpoints.get(finished_steps)
        if kept is not None:
            now = latest_digests(self._replayed)
            differing = sorted(name for name in {*kept.sha256, *now} if kept.sha256.get(name) != now.get(name))
            compared = CheckpointComparison(step=finished_steps, differing=tuple(differing))
            self.found.append(compared)
            self._report(compared)
        if finished_steps >= max(self._checkpoints):
            raise _DoneError


class ReplayEngine(EngineWrapper):
    """Answers calls from the journal of a run. Only calls outside of training rollouts reach the wrapped engine."""

    def __init__(self, engine: RolloutEngine, run: Path, last_batch: int) -> None:
        """`last_batch` is the last task batch that is used for training."""
        super().__init__(engine)
        self._run = run
        self._last_batch = last_batch
        self._known: dict[int, dict[int, StoredCall | StoredFailure]] = {}

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Return the response from the journal. See `RolloutEngine.generate`.

        Raises:
            JournalError: the journal does not contain the call, or a record of its task batch is damaged.
        """
        if sampling.task_batch is None:
            return await self.inner.generate(prompt_ids, sampling, session=session)
        if sampling.task_batch > self._last_batch:
            # The replay ends before this batch is used for training, and then cancels this call.
            await asyncio.Event().wait()
        kept = self._calls(sampling.task_batch).get(sampling.seed)
        if kept is None or kept.asked != checksum_of_call(np.asarray(prompt_ids, np.int32), sampling):
            raise JournalError(
                "journal-mismatch",
                f"The journal of {self._run} has no response to the prompt in {session!r} of batch "
                f"{sampling.task_batch}.",
                "Check if the environment, the workflow or a value of the run has changed since, or if the journal "
                "was off.",
            )
        if isinstance(kept, StoredFailure):
            await fail_again(kept)
        return kept.completion

    def _calls(self, batch: int) -> dict[int, StoredCall | StoredFailure]:
        """Return the calls of a task batch by seed. If a call was repeated, return its last version.

        After a resume, repeated updates may have changed the weights that sampled it.
        """
        if batch not in self._known:
            path = path_of_batch(self._run / DIRECTORY, batch)
            bodies = read_frames(path).records if path.is_file() else []
            calls = [decode_call(body) for body in bodies if not body.startswith(CONFIG)]
            failures = {call.seed: call for call in calls if isinstance(call, StoredFailure)}
            self._known[batch] = failures | {call.seed: call for call in calls if isinstance(call, StoredCall)}
        return self._known[batch]
