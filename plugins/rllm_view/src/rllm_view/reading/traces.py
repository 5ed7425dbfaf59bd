"""Effect of a step's update on the tokens of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_record.steps import StepFiles
from rllm_view.reading.rollout import Rollout

OF_BATCH = ("advantage", "rollout_logprob", "old_logprob", "ref_logprob")
"""Figures that every epoch has alike."""
OF_EPOCH = ("logprob", "entropy", "weight", "clipped", "policy_part", "kl_part", "entropy_part")
OF_STEP = ("loss", "grad_norm", "clip_factor", "learning_rate")
Metrics = Mapping[str, NDArray[np.float64] | None]
"""Name -> (n,) one number per token of the trajectory, NaN where it is not trained on; None: not recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochTrace:
    """One pass over the batch."""

    epoch: int
    figures: Metrics
    """`OF_EPOCH`; `optimizer_step` within the training step, and of each token's optimiser step `OF_STEP`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """An update."""

    batch: Metrics
    """`OF_BATCH`."""
    epochs: Sequence[EpochTrace]
    """Empty: the backend traces nothing."""


def read_trace(record: Path, step: int, attempt: Rollout) -> Trace | None:
    """Return the trace of the update of `step`. None if it is not recorded.

    Raises:
        RecordError: a file cannot be read.
    """
    files = StepFiles(record)
    rows = files.trace_table(step, attempt.uid).to_pylist() if files.has_update(step) else []
    if not rows:
        return None
    by_number = {row["optimizer_step"]: row for row in files.update_table(step).to_pylist()}
    starts = sorted({turn.segment_start for turn in attempt.turns})
    placed = [(row, starts[row["segment"]] + np.array(row["positions"], np.int64)) for row in rows]
    batch = {name: _spread(attempt.length, placed, name) for name in OF_BATCH}
    epochs = sorted({row["epoch"] for row in rows} - {None})
    return Trace(
        batch=batch,
        epochs=[
            _epoch(number, [each for each in placed if each[0]["epoch"] == number], attempt.length, by_number)
            for number in epochs
        ],
    )


Placed = Sequence[tuple[Mapping[str, Any], NDArray[np.int64]]]
"""Rows of the file, each with the places of its tokens in the trajectory."""


def _epoch(number: int, placed: Placed, length: int, updates: Mapping[int, Mapping[str, Any]]) -> EpochTrace:
    figures: dict[str, NDArray[np.float64] | None] = {name: _spread(length, placed, name) for name in OF_EPOCH}
    steps: dict[str, NDArray[np.float64]] = {}
    for row, at in placed:
        update = {"optimizer_step": row["optimizer_step"], **updates.get(row["optimizer_step"], {})}
        for name in ("optimizer_step", *OF_STEP):
            if update.get(name) is not None:
                steps.setdefault(name, np.full(length, np.nan))[at] = update[name]
    return EpochTrace(epoch=number, figures=figures | {name: steps.get(name) for name in ("optimizer_step", *OF_STEP)})


def _spread(length: int, placed: Placed, name: str) -> NDArray[np.float64] | None:
    values: NDArray[np.float64] | None = None
    for row, at in placed:
        if row[name] is not None:
            if values is None:
                values = np.full(length, np.nan)
            values[at] = row[name]
    return values
