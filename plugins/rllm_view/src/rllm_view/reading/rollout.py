"""Read one trajectory from its step's files, and the effect of an update on its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rllm_record.steps import RecordError, StepFiles


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A message before the response."""

    role: str
    text: str
    data: str | None
    """The whole message as JSON, if it has more than a role and text."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A model call. ``prompt_start:response_start`` is its new part of the prompt, and the rest is its response."""

    segment_start: int
    prompt_start: int
    response_start: int
    end: int
    weight_version: int
    version_spans: Sequence[tuple[int, int]]
    """(version, tokens) if several weight versions generated the response."""
    finish_reason: str | None
    reward: float | None
    observations: Sequence[Observation] | None
    """New messages before the response. None: not recorded."""
    text: str | None
    """The response. None: not recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """A trajectory and its episode."""

    uid: str
    episode: str
    name: str
    step: int
    batch: int
    task_id: str
    data_source: str
    is_correct: bool
    termination_reason: str
    error: str
    tries: int
    metrics: Mapping[str, float]
    task: str | None
    """Data of its task as JSON. None: not recorded."""
    reward_given: float | None
    reward_used: float | None
    components: Mapping[str, float]
    turns: Sequence[Turn]
    ids: NDArray[np.int32] | None
    """(n,) all tokens. None: not recorded."""
    logprobs: NDArray[np.float32] | None
    """(n,) log-probs from the sampler. NaN: not reported. None: not recorded."""

    @property
    def length(self) -> int:
        """Number of tokens of all turns."""
        return self.turns[-1].end if self.turns else 0


def read_rollout(record: Path, step: int, uid: str) -> Rollout:
    """Read a trajectory that was generated in a step.

    Raises:
        RecordError: the trajectory is not recorded, or its file cannot be read.
    """
    for batch in StepFiles(record).episode_table(step, uid).to_batches():
        found = _in_batch(batch, uid)
        if found is not None:
            return found
    raise RecordError("unknown-trajectory", f"No trajectory {uid!r} was generated in step {step}.")


def _in_batch(batch: pa.RecordBatch, uid: str) -> Rollout | None:
    column = batch.column("trajectories")
    uids = column.flatten().field("uid")
    if uid not in uids.to_pylist():
        return None
    for row in range(len(batch)):
        for place, trajectory in enumerate(column[row]):
            if trajectory["uid"].as_py() == uid:
                episode = batch.slice(row, 1).drop_columns(["trajectories"]).to_pylist()[0]
                return _rollout(episode, column[row][place])
    return None


def _rollout(episode: Mapping[str, Any], trajectory: pa.StructScalar) -> Rollout:
    ids, logprobs = trajectory["ids"], trajectory["logprobs"]
    return Rollout(
        uid=trajectory["uid"].as_py(),
        episode=episode["uid"],
        name=trajectory["name"].as_py(),
        step=episode["step"],
        batch=episode["batch"],
        task_id=episode["task_id"],
        data_source=episode["data_source"],
        is_correct=episode["is_correct"],
        termination_reason=episode["termination_reason"],
        error=episode["error"],
        tries=episode["tries"],
        metrics=dict(episode["metrics"] or ()),
        task=episode.get("task"),
        reward_given=trajectory["reward_given"].as_py(),
        reward_used=trajectory["reward_used"].as_py(),
        components=dict(trajectory["components"].as_py() or ()),
        turns=_turns(trajectory["steps"].as_py()),
        # pyarrow's `to_numpy` imports pandas if it is installed, which takes 75 MB and most of a second.
        ids=np.array(ids.as_py(), np.int32) if ids.is_valid else None,
        # Missing log-probs are None here, and become NaN.
        logprobs=np.array(logprobs.as_py(), np.float32) if logprobs.is_valid else None,
    )


def _turns(steps: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for step in steps:
        # The record has the start of a segment. Later prompts of the segment start at the end of the previous turn.
        new = not turns or turns[-1].segment_start != step["segment_start"]
        before = step["segment_start"] if new else turns[-1].end
        observations = step.get("messages")
        turns.append(
            Turn(
                segment_start=step["segment_start"],
                prompt_start=before,
                response_start=step["response_start"],
                end=step["end"],
                weight_version=step["weight_version"],
                version_spans=tuple((span["version"], span["tokens"]) for span in step["version_spans"] or ()),
                finish_reason=step["finish_reason"],
                reward=step["reward"],
                observations=None
                if observations is None
                else tuple(Observation(**message) for message in observations),
                text=step["text"],
            )
        )
    return tuple(turns)


OF_BATCH = ("advantage", "rollout_logprob", "old_logprob", "ref_logprob")
"""Values that are equal in every epoch."""
OF_EPOCH = ("logprob", "entropy", "weight", "clipped", "policy_part", "kl_part", "entropy_part")
OF_STEP = ("loss", "grad_norm", "clip_factor", "learning_rate")
Metrics = Mapping[str, NDArray[np.float64] | None]
"""Name -> (n,) one number per token of the trajectory. NaN: not trained on. None: not recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochTrace:
    """One pass over the batch."""

    epoch: int
    values: Metrics
    """`OF_EPOCH`, `optimizer_step` within the training step, and `OF_STEP` of each token's optimizer step."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """The trace of an update."""

    batch: Metrics
    """The values `OF_BATCH`."""
    epochs: Sequence[EpochTrace]
    """Empty if the backend records no trace."""


def read_trace(record: Path, step: int, rollout: Rollout) -> Trace | None:
    """Return the trace of the update of `step`. None if it is not recorded.

    Raises:
        RecordError: a file cannot be read.
    """
    files = StepFiles(record)
    rows = files.trace_table(step, rollout.uid).to_pylist() if files.has_update(step) else []
    if not rows:
        return None
    by_number = {row["optimizer_step"]: row for row in files.update_table(step).to_pylist()}
    starts = sorted({turn.segment_start for turn in rollout.turns})
    placed = [(row, starts[row["segment"]] + np.array(row["positions"], np.int64)) for row in rows]
    batch = {name: _spread(rollout.length, placed, name) for name in OF_BATCH}
    epochs = sorted({row["epoch"] for row in rows} - {None})
    return Trace(
        batch=batch,
        epochs=[
            _epoch(number, [each for each in placed if each[0]["epoch"] == number], rollout.length, by_number)
            for number in epochs
        ],
    )


Placed = Sequence[tuple[Mapping[str, Any], NDArray[np.int64]]]
"""Rows of the file, each with the positions of its tokens in the trajectory."""


def _epoch(number: int, placed: Placed, length: int, updates: Mapping[int, Mapping[str, Any]]) -> EpochTrace:
    values: dict[str, NDArray[np.float64] | None] = {name: _spread(length, placed, name) for name in OF_EPOCH}
    steps: dict[str, NDArray[np.float64]] = {}
    for row, at in placed:
        update = {"optimizer_step": row["optimizer_step"], **updates.get(row["optimizer_step"], {})}
        for name in ("optimizer_step", *OF_STEP):
            if update.get(name) is not None:
                steps.setdefault(name, np.full(length, np.nan))[at] = update[name]
    return EpochTrace(epoch=number, values=values | {name: steps.get(name) for name in ("optimizer_step", *OF_STEP)})


def _spread(length: int, placed: Placed, name: str) -> NDArray[np.float64] | None:
    values: NDArray[np.float64] | None = None
    for row, at in placed:
        if row[name] is not None:
            if values is None:
                values = np.full(length, np.nan)
            values[at] = row[name]
    return values
