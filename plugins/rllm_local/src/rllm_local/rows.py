"""From a TokenBatch to what torch computes on: micro-batches of rows of similar length, padded on the right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch

ENOUGH = 1024
"""Padded tokens that keep a device busy. Smaller micro-batches are not cut for their padding."""
MOST_PADDED = 1.125
"""Most padded tokens per real token."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Some rows. ``n_sampled`` counts their sampled tokens, row after row."""

    input_ids: Tensor
    """(n_row, width - 1) int64 all but the last token. Right padding needs no mask under causal attention."""
    columns: Tensor
    """(n_column,) positions of `input_ids` that predict a sampled token in at least one row."""
    selected: Tensor
    """(n_row, n_column) bool: which of those predict a sampled token of this row."""
    targets: Tensor
    """(n_sampled,) int64 the sampled tokens."""
    source: NDArray[np.int64]
    """(n_sampled,) where each sampled token is in the TokenBatch."""
    row_ids: Tensor
    """(n_sampled,) int64 the row each belongs to."""

    def column(self, values: NDArray[np.float32]) -> Tensor:
        """(n_sampled,) the sampled tokens' entries of a column of the TokenBatch, (n_token,)."""
        return torch.from_numpy(values[self.source]).to(self.targets.device)

    def loss_input(self, batch: TokenBatch, logprobs: Tensor, seed: int) -> LossInput:
        """What losses are given: the micro-batch's share of a batch with `advantages` and `old_logprobs`."""
        assert batch.advantages is not None
        assert batch.old_logprobs is not None
        return LossInput(
            logprobs=logprobs,
            old_logprobs=self.column(batch.old_logprobs),
            advantages=self.column(batch.advantages),
            row_ids=self.row_ids,
            sampling_logprobs=self.column(batch.sampling_logprobs),
            ref_logprobs=None if batch.ref_logprobs is None else self.column(batch.ref_logprobs),
            seed=seed,
        )


def micro_batches(
    batch: TokenBatch, rows: NDArray[np.int64], max_tokens: int, device: torch.device
) -> Iterator[MicroBatch]:
    """Cut `rows` into micro-batches of at most `max_tokens` padded tokens (one row at least), short rows first.

    A micro-batch ends earlier where a longer row would pad all others.
    Rows without a sampled token would add exactly 0 to the gradient and are left out.
    """
    rows = rows[sampled_per_row(batch)[rows] > 0]
    order = rows[np.argsort(batch.row_lengths[rows], kind="stable")]
    start = 0
    while start < len(order):
        end = start + 1
        real = int(batch.row_lengths[order[start]])
        while end < len(order):
            length = int(batch.row_lengths[order[end]])
            padded, real = (end + 1 - start) * length, real + length
            if padded > max_tokens or (padded > ENOUGH and padded > MOST_PADDED * real):
                break
            end += 1
        yield _pad(batch, order[start:end], device)
        start = end


def _pad(batch: TokenBatch, rows: NDArray[np.int64], device: torch.device) -> MicroBatch:
    lengths = batch.row_lengths[rows]
    column = np.arange(int(lengths.max()))
    real = column < lengths[:, None]
    flat = np.where(real, batch.row_offsets[rows][:, None] + column, 0)
    ids = np.where(real, batch.tokens[flat], 0).astype(np.int64)
    sampled = (real & batch.loss_mask[flat])[:, 1:]
    columns = np.flatnonzero(sampled.any(axis=0))
    return MicroBatch(
        input_ids=torch.from_numpy(ids[:, :-1]).to(device),
        columns=torch.from_numpy(columns).to(device),
        selected=torch.from_numpy(sampled[:, columns]).to(device),
        targets=torch.from_numpy(ids[:, 1:][sampled]).to(device),
        source=flat[:, 1:][sampled],
        row_ids=torch.from_numpy(np.repeat(rows, sampled.sum(axis=1))).to(device),
    )
