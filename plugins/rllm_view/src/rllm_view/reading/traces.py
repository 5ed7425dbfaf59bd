"""What the update of a step did with the tokens of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rllm_record.steps import RecordError, require_known_version
from rllm_view.reading.attempt import Attempt

ROWS_AT_ONCE = 1024
"""In memory at a time; batches of 16 take eleven times as long."""
OF_BATCH = ("advantage", "rollout_logprob", "old_logprob", "ref_logprob")
"""Figures that every epoch has alike."""
OF_EPOCH = ("logprob", "entropy", "weight", "policy_part", "kl_part", "entropy_part")
OF_STEP = ("loss", "grad_norm", "clip_factor", "learning_rate")
Figures = Mapping[str, NDArray[np.float64] | None]
"""Name -> (n,) one number per token of the trajectory, NaN where it is not trained on; None: not recorded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochTrace:
    """One pass over the batch."""

    epoch: int
    figures: Figures
    """`OF_EPOCH`; `optimizer_step` within the training step, and of each token's optimiser step `OF_STEP`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """An update."""

    batch: Figures
    """`OF_BATCH`."""
    epochs: Sequence[EpochTrace]
    """Empty: the backend traces nothing."""


def read_trace(record: Path, step: int, attempt: Attempt) -> Trace | None:
    """What the update of `step` did; None where that is not recorded.

    Raises:
        RecordError: a file cannot be read.
    """
    rows = _rows(record / "traces" / f"step_{step:06d}.parquet", ("trajectory", attempt.uid))
    if not rows:
        return None
    updates = _rows(record / "updates" / f"step_{step:06d}.parquet")
    by_number = {row["optimizer_step"]: row for row in updates or ()}
    starts = sorted({turn.segment_start for turn in attempt.turns})
    placed = [(row, starts[row["segment"]] + np.array(row["positions"], np.int64)) for row in rows]
    batch = {name: _spread(attempt.length, placed, name) for name in OF_BATCH}
    _fill_from_attempt(batch, attempt, placed)
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


def _fill_from_attempt(batch: dict[str, NDArray[np.float64] | None], attempt: Attempt, placed: Placed) -> None:
    """The record does not repeat what the sampler reported, nor old log-probs that are the same."""
    for name in ("rollout_logprob", "old_logprob"):
        # Old log-probs fall back on those of sampling, which are filled in by then.
        instead = attempt.logprobs if name == "rollout_logprob" else batch["rollout_logprob"]
        for row, at in placed:
            if row[name] is None and instead is not None:
                column = batch[name]
                if column is None:
                    column = batch[name] = np.full(attempt.length, np.nan)
                column[at] = instead[at]


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


def _rows(place: Path, where: tuple[str, str] | None = None) -> list[dict[str, Any]] | None:
    """Rows of a file, those with a value in a column alone; None where there is no file."""
    try:
        with pq.ParquetFile(place) as file:
            require_known_version(place, file.schema_arrow.metadata)
            return _all(file) if where is None else _matching(file, *where)
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException, KeyError) as error:
        raise RecordError(f"{place} cannot be read: {error}.") from error


def _all(file: pq.ParquetFile) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = file.read().to_pylist()
    return rows


def _matching(file: pq.ParquetFile, name: str, value: str) -> list[dict[str, Any]]:
    """A few rows at a time: those of one step may be gigabytes. Filters of pyarrow's own import pandas."""
    rows: list[dict[str, Any]] = []
    for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
        places = [place for place, found in enumerate(batch.column(name).to_pylist()) if found == value]
        for place in places:
            rows += batch.slice(place, 1).to_pylist()
    return rows
