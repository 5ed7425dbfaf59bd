"""Replay: the updates of a run, made again on what its journal says was sampled. Do they give the same weights?"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rllm_core import AgentTrainer, build_train_config
from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun
from rllm_record.journal.checkpoints import DIRECTORY, KeptCheckpoint, kept_checkpoints, latest_digests
from rllm_record.journal.engine import fail_again
from rllm_record.journal.errors import JournalError
from rllm_record.journal.frames import read_frames
from rllm_record.journal.records import CONFIG, KeptCall, KeptFailure, checksum_of_call, decoded
from rllm_record.journal.segments import path_of_round

OVERRIDES = (
    "rllm.trainer.observers=[{name: journal, keep: off}]",
    "rllm.trainer.logger=[]",
    "rllm.trainer.keep_checkpoints=2",
    "rllm.record=off",
    "rllm.episode_logging.log_episodes=false",
)
"""A replay leaves nothing behind, and only checkpoints of it are looked at."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A checkpoint of the run and of its replay."""

    step: int
    """Finished steps."""
    differing: tuple[str, ...]
    """Files of the backend that are other ones; empty: none."""


@dataclass
class Replay:
    """What a replay has found."""

    checkpoints: list[Compared] = field(default_factory=list)


def replay(run: Path, tell: Callable[[Compared], None]) -> Replay:
    """Make the updates of a run again, up to its last checkpoint. Samples nothing, validates nothing.

    Args:
        run: its folder, which is only read.
        tell: called for each checkpoint as it is compared.

    Raises:
        RllmError: the run has no journal of all its rounds, or cannot be made again here.
        JournalError: a record is not what was written, or a call that is asked is not in the journal.
    """
    replayer = _Replayer(run, kept_checkpoints(run), tell)
    with tempfile.TemporaryDirectory(prefix="rllm-replay-") as directory:
        overrides = [*OVERRIDES, f"rllm.trainer.output_dir={directory}"]
        config = build_train_config(config_file=run / "config.yaml", overrides=overrides)
        with contextlib.suppress(_DoneError):
            AgentTrainer(config=config, observers=[replayer]).train()
    return replayer.found


class _DoneError(Exception):
    """The last checkpoint of the run has been compared; steps after it may lack calls."""


class _Replayer(Observer):
    def __init__(self, run: Path, checkpoints: dict[int, KeptCheckpoint], tell: Callable[[Compared], None]) -> None:
        self.found = Replay()
        self._run = run
        self._checkpoints = checkpoints
        self._tell = tell
        self._replayed = Path()

    def wrap_engine(self, engine: RolloutEngine, run: TrackedRun) -> RolloutEngine:
        self._replayed = run.directory
        return ReplayEngine(engine, self._run, self._checkpoints[max(self._checkpoints)].taken)

    def on_validation_start(self, global_step: int) -> bool:
        return False

    def on_checkpoint(self, finished_steps: int, first_round: int) -> None:
        kept = self._checkpoints.get(finished_steps)
        if kept is not None:
            now = latest_digests(self._replayed)
            differing = sorted(name for name in {*kept.sha256, *now} if kept.sha256.get(name) != now.get(name))
            compared = Compared(step=finished_steps, differing=tuple(differing))
            self.found.checkpoints.append(compared)
            self._tell(compared)
        if finished_steps >= max(self._checkpoints):
            raise _DoneError


class ReplayEngine(EngineWrapper):
    """Answers from the journal of a run; only what no round asks reaches the engine behind."""

    def __init__(self, engine: RolloutEngine, run: Path, last_round: int) -> None:
        """`last_round`: the last that is trained on."""
        super().__init__(engine)
        self._run = run
        self._last_round = last_round
        self._known: dict[int, dict[int, KeptCall | KeptFailure]] = {}

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """As `RolloutEngine.generate`, without sampling.

        Raises:
            JournalError: the call is not in the journal, or a record of its round is not what was written.
        """
        if sampling.round is None:
            return await self.inner.generate(prompt_ids, sampling, session=session)
        if sampling.round > self._last_round:
            # Nothing is trained on it before the replay ends, and then it is cancelled.
            await asyncio.Event().wait()
        kept = self._calls(sampling.round).get(sampling.seed)
        if kept is None or kept.asked != checksum_of_call(np.asarray(prompt_ids, np.int32), sampling):
            raise JournalError(
                "journal-mismatch",
                f"The journal of {self._run} has no reply to the prompt in {session!r} of round {sampling.round}.",
                "The run had no journal then, or the environment, the workflow or a value of the run has changed.",
            )
        if isinstance(kept, KeptFailure):
            await fail_again(kept)
        return kept.completion

    def _calls(self, round: int) -> dict[int, KeptCall | KeptFailure]:
        """Of calls that were made again, the last: weights that were made again sampled it."""
        if round not in self._known:
            path = path_of_round(self._run / DIRECTORY, round)
            bodies = read_frames(path).records if path.is_file() else []
            calls = [decoded(body) for body in bodies if not body.startswith(CONFIG)]
            failures = {call.seed: call for call in calls if isinstance(call, KeptFailure)}
            self._known[round] = failures | {call.seed: call for call in calls if isinstance(call, KeptCall)}
        return self._known[round]
