"""From a TokenBatch to what torch computes on: micro-batches of sequences of similar length, padded on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.data.batch import TokenBatch
from rllm_local.packing import Pack, packs

ENOUGH = 1024
"""Padded tokens that keep a device busy. Smaller micro-batches are not cut for their padding."""
MOST_PADDED = 1.125
"""Most padded tokens per real token."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Some rows, those with the same prompt in one sequence. ``n_sampled`` counts their sampled tokens."""

    input_ids: Tensor
    """(n_sequence, width) int64; of each row all but its last token."""
    position_ids: Tensor | None
    """(n_sequence, width) int64; None: positions are columns."""
    attention_mask: Tensor | None
    """(n_sequence, 1, width, width) bool, what each position sees; None: everything before it. Padding is on the right
    and needs no mask."""
    columns: Tensor
    """(n_column,) positions of `input_ids` that predict a sampled token in at least one sequence."""
    places: tuple[Tensor, Tensor]
    """(n_sampled,) int64 each: which sequence, and which of `columns`, predicts the sampled token. Rows with the same
    prompt have their first one from the same place."""
    targets: Tensor
    """(n_sampled,) int64 the sampled tokens."""
    source: NDArray[np.int64]
    """(n_sampled,) where each sampled token is in the TokenBatch; those of a row follow each other."""
    row_ids: Tensor
    """(n_sampled,) int64 the row each belongs to."""

    def column(self, values: NDArray[np.float32]) -> Tensor:
        """(n_sampled,) the sampled tokens' entries of a column of the TokenBatch, (n_token,)."""
        return torch.from_numpy(values[self.source]).to(self.targets.device)


def micro_batches(
    batch: TokenBatch, rows: NDArray[np.int64], max_tokens: int, device: torch.device
) -> Iterator[MicroBatch]:
    """Cut `rows` into micro-batches of at most `max_tokens` padded tokens (one row at least), short sequences first.

    A micro-batch ends earlier where a longer sequence would pad all others.
    Rows without a sampled token would add exactly 0 to the gradient and are left out.
    """
    rows = rows[sampled_per_row(batch)[rows] > 0]
    order = sorted(packs(batch, rows, max_tokens), key=lambda pack: pack.width)
    start = 0
    while start < len(order):
        end = start + 1
        real = order[start].width
        while end < len(order):
            width = order[end].width
            padded, real = (end + 1 - start) * width, real + width
            if padded > max_tokens or (padded > ENOUGH and padded > MOST_PADDED * real):
                break
            end += 1
        yield _pad(batch, order[start:end], device)
        start = end


def _pad(batch: TokenBatch, sequences: Sequence[Pack], device: torch.device) -> MicroBatch:
    shape = len(sequences), max(pack.width for pack in sequences)
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    owners = np.full(shape, -1, np.int64)
    """Which row a position is of; -1 in prompts, which all see."""
    predicted: list[tuple[NDArray[np.int64], ...]] = []
    for number, pack in enumerate(sequences):
        at = pack.prompt
        first = batch.row_offsets[pack.rows[0]]
        ids[number, :at], positions[number, :at] = batch.tokens[first : first + at], np.arange(at)
        for row in pack.rows:
            start, end = batch.row_offsets[row : row + 2]
            first, last = start + pack.prompt, end - 1
            following = slice(at, at + last - first)
            ids[number, following] = batch.tokens[first:last]
            positions[number, following] = np.arange(pack.prompt, last - start)
            owners[number, following] = row
            sampled = np.flatnonzero(batch.loss_mask[first:end])
            column = np.where(sampled == 0, pack.prompt - 1, at + sampled - 1)
            predicted.append((np.full(len(sampled), number), column, first + sampled, np.full(len(sampled), row)))
            at = following.stop
    sequence, column, source, row_ids = (np.concatenate(each) for each in zip(*predicted, strict=True))
    columns, places = np.unique(column, return_inverse=True)
    packed = any(len(pack.rows) > 1 for pack in sequences)
    return MicroBatch(
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=torch.from_numpy(positions).to(device) if packed else None,
        attention_mask=_mask(torch.from_numpy(owners).to(device)) if packed else None,
        columns=torch.from_numpy(columns).to(device),
        places=(torch.from_numpy(sequence).to(device), torch.from_numpy(places).to(device)),
        targets=torch.from_numpy(batch.tokens[source].astype(np.int64)).to(device),
        source=source,
        row_ids=torch.from_numpy(row_ids).to(device),
    )


def _mask(owners: Tensor) -> Tensor:
    """A position sees its prompt and its own row up to itself; padding sees the prompt."""
    keys, queries = owners[:, None, :], owners[:, :, None]
    return ((keys == queries) | (keys < 0)).tril()[:, None]
