"""Convert an update to rows of `TRACES`, and complete rows with data from the recorded episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace
from rllm_core.data.types import Trajectory
from rllm_record.steps.rows import RecordedUpdate
from rllm_record.steps.schemas import TRACES

TRACED = ("logprob", "entropy", "weight", "policy_part", "kl_part", "entropy_part")
"""Columns of `TRACES` that come from the backend. A value is NaN if the backend did not report it. A row's column is
null if the backend reported no value of the row."""


def trace_table(update: RecordedUpdate) -> pa.Table:
    """Return the rows of `TRACES` for an update, by epoch, in the order of the batch.

    Without a token trace, there is one row per row of the batch. `ids` and `rollout_logprob` are null if the recorded
    episodes contain them. `old_logprob` is null if it equals `rollout_logprob`.
    """
    batch = update.batch
    laid = _lay_out(batch, update.trace)
    owners = batch.trajectory[laid.row]
    segments = _segments(batch)
    given = np.array([update.rollout_steps[owner] is None for owner in owners], np.bool_)
    rollout = batch.sampling_logprobs[laid.tokens]
    columns: dict[str, Any] = {
        "trajectory": [update.uids[owner] for owner in owners],
        "segment": segments[laid.row],
        "row": laid.row,
        "role": [batch.roles[role] for role in batch.role[laid.row]],
        "rollout_step": [update.rollout_steps[owner] for owner in owners],
        "epoch": pa.nulls(len(owners)) if laid.epoch is None else laid.epoch,
        "optimizer_step": pa.nulls(len(owners)) if laid.optimizer_step is None else laid.optimizer_step,
        "positions": laid.lists(laid.position),
        "ids": laid.lists(batch.tokens[laid.tokens], given),
        "rollout_logprob": laid.lists(rollout, given),
    }
    for name, values in (("advantage", batch.advantages), ("ref_logprob", batch.ref_logprobs)):
        columns[name] = pa.nulls(len(owners)) if values is None else laid.lists(values[laid.tokens])
    if batch.old_logprobs is None:
        columns["old_logprob"] = pa.nulls(len(owners))
    else:
        old = batch.old_logprobs[laid.tokens]
        columns["old_logprob"] = laid.lists(old, laid.any(old.view(np.int32) != rollout.view(np.int32)))
    for name in TRACED:
        if update.trace is None:
            columns[name] = pa.nulls(len(owners))
        else:
            values = getattr(update.trace, name)[laid.order]
            columns[name] = laid.lists(values, laid.any(~np.isnan(values)))
    columns["clipped"] = _clipped_tokens(laid, update.trace)
    return pa.table({field.name: _cast(columns[field.name], field.type) for field in TRACES})


def _clipped_tokens(laid: _Layout, trace: TokenTrace | None) -> pa.Array:
    """Return one list of bools per row. A list is null if the row's loss does not report clipping."""
    if trace is None:
        return pa.nulls(len(laid.row))
    values = trace.clipped[laid.order]
    return laid.lists(values == 1.0, laid.any(~np.isnan(values)))


@dataclass(frozen=True, eq=False)
class _Layout:
    """Tokens in the order of epoch, row and position. ``n_list`` is the number of pairs of epoch and row."""

    order: NDArray[np.int64]
    """(n,) indices into the columns of the trace."""
    tokens: NDArray[np.int64]
    """(n,) indices into the tokens of the batch."""
    position: NDArray[np.int32]
    """(n,) positions in the row."""
    lengths: NDArray[np.int64]
    """(n_list,) numbers of tokens."""
    row: NDArray[np.int32]
    """(n_list,) rows of the batch."""
    epoch: NDArray[np.int32] | None
    """(n_list,) epochs. None without a trace."""
    optimizer_step: NDArray[np.int32] | None
    """(n_list,) optimizer steps. None without a trace."""

    def any(self, tokens: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return (n_list,) bools, True if a token of the list is marked. No list may be empty."""
        starts = np.concatenate(([0], np.cumsum(self.lengths)))[:-1]
        return np.logical_or.reduceat(tokens, starts) if len(starts) else np.zeros(0, np.bool_)

    def lists(self, values: NDArray[Any], kept: NDArray[np.bool_] | None = None) -> pa.Array:
        """Return one list per pair of epoch and row. A list is null if `kept` is False for it."""
        lengths = self.lengths
        if kept is not None and not kept.all():
            values, lengths = values[np.repeat(kept, lengths)], np.where(kept, lengths, 0)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        mask = None if kept is None else pa.array(~kept)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=mask)


def _lay_out(batch: TokenBatch, trace: TokenTrace | None) -> _Layout:
    if trace is None:
        tokens = np.flatnonzero(batch.loss_mask)
        row = (np.searchsorted(batch.row_offsets, tokens, side="right") - 1).astype(np.int32)
        position = (tokens - batch.row_offsets[row]).astype(np.int32)
        order, epoch = np.arange(len(tokens)), np.zeros(len(tokens), np.int32)
    else:
        order = np.lexsort((trace.position, trace.row, trace.epoch))
        row, position, epoch = trace.row[order], trace.position[order], trace.epoch[order]
        tokens = batch.row_offsets[row] + position
    first = np.flatnonzero(np.diff(row, prepend=-1) | np.diff(epoch, prepend=-1)) if len(row) else np.zeros(0, np.int64)
    lengths = np.diff(np.append(first, len(row)))
    return _Layout(
        order=order,
        tokens=tokens,
        position=position,
        lengths=lengths,
        row=row[first],
        epoch=None if trace is None else epoch[first],
        optimizer_step=None if trace is None else trace.optimizer_step[order][first],
    )


def _segments(batch: TokenBatch) -> NDArray[np.int32]:
    """Return the (n_row,) segment number of each row. A segment without a sampled token has no row."""
    found: list[int] = []
    owned = np.unique(batch.trajectory)
    trajectories = [each for group in batch.groups for each in group.trajectories]
    for owner in owned.tolist():
        found += _sampled_segments(trajectories[owner])
    return np.array(found, np.int32)


def _sampled_segments(trajectory: Trajectory) -> list[int]:
    starts = trajectory.tokens.segment_starts
    if len(starts) == 1:
        return [0]
    sampled = {step.span.segment_start for step in trajectory.steps if step.span.end > step.span.response_start}
    return [number for number, start in enumerate(starts) if start in sampled]


def _cast(values: Any, of: pa.DataType) -> pa.Array:
    return values.cast(of) if isinstance(values, pa.Array) else pa.array(values, of)


Episodes = Callable[[int], pa.Table | None]
"""Returns the episodes that were generated in a step, as in `EPISODES`. None if they are not recorded."""


def fill_traces(table: pa.Table, episodes: Episodes) -> pa.Table:
    """Fill null columns of `TRACES` with data from the recorded episodes. Missing data stay null."""
    ids, rollout = table["ids"].to_pylist(), table["rollout_logprob"].to_pylist()
    old = table["old_logprob"].to_pylist()
    found: dict[int, dict[str, _Tokens]] = {}
    places = zip(*(table[name].to_pylist() for name in ("rollout_step", "trajectory", "segment")), strict=True)
    for index, ((step, uid, segment), at) in enumerate(zip(places, table["positions"].to_pylist(), strict=True)):
        if ids[index] is None and step is not None:
            if step not in found:
                recorded = episodes(step)
                found[step] = {} if recorded is None else _by_uid(recorded)
            if uid in found[step]:
                ids[index], rollout[index] = found[step][uid].tokens(segment, at)
        if old[index] is None:
            old[index] = rollout[index]
    for name, values in (("ids", ids), ("rollout_logprob", rollout), ("old_logprob", old)):
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    return table


@dataclass(frozen=True, eq=False)
class _Tokens:
    """Tokens and log-probs of a trajectory."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    segment_starts: Sequence[int]

    def tokens(self, segment: int, positions: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        at = self.segment_starts[segment] + np.array(positions, np.int64)
        return self.ids[at], self.logprobs[at]


def _by_uid(episodes: pa.Table) -> dict[str, _Tokens]:
    column = episodes["trajectories"].combine_chunks()
    trajectories = column.flatten() if isinstance(column, pa.ListArray) else pa.concat_arrays(column).flatten()
    ids, logprobs, steps = (trajectories.field(name) for name in ("ids", "logprobs", "steps"))
    return {
        uid: _Tokens(
            ids[index].values.to_numpy(),
            logprobs[index].values.to_numpy(zero_copy_only=False),
            sorted({step["segment_start"] for step in steps[index].as_py()}),
        )
        for index, uid in enumerate(trajectories.field("uid").to_pylist())
        if ids[index].is_valid
    }
