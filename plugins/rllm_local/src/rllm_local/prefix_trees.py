"""Micro-batches in which rows share prefixes: each common beginning of rows is computed once.

Rows are sorted by their tokens. Then a row shares its longest common prefix with the row before it, and only the tokens
after the prefix are new. The new tokens of all rows, row after row, are the prefix tree of the rows in depth-first
order. They form the only sequence of a micro-batch. A row's path contains the places of all its tokens in the sequence.
Attention reads the row's keys by this path, and a token's position is its position in the row, so a row has the same
results as in a separate sequence. Rows without a common prefix need no padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.minibatches import sampled_per_row
from rllm_core.data.batch import TokenBatch
from rllm_local.exact_attention import FEWEST_ROWS
from rllm_local.transfer import to_device
from rllm_local.tree_attention import RowEnds, group_row_ends

WORTH_SHARING = 16
"""A row shares its prefix if its other tokens are fewer than this many times the prefix. Attention to a whole row is
slightly faster than to a row with a prefix."""
ENOUGH, ENOUGH_ON_CPU = 8192, 512
"""Number of tokens from which a micro-batch may end. On a CPU, larger ones are no faster and need more memory. The
number for other devices is not measured."""
REPEATED = 1 / 8
"""Maximum ratio of a row's shared prefix to the micro-batch. A micro-batch with enough tokens ends before such a row,
and the next one computes the prefix again."""
ROOM = 1.5
"""Minimum ratio of a micro-batch's token limit to its first row's tokens, so that long rows share a prefix."""


@dataclass(frozen=True, eq=False)
class PrefixTree:
    """Rows in the order of their tokens. A row's input is its tokens except the last."""

    rows: NDArray[np.int64]
    """Indices of the rows in the batch, (n_row,)."""
    lengths: NDArray[np.int64]
    """(n_row,) number of input tokens."""
    shared: NDArray[np.int64]
    """(n_row,) number of first tokens that the row shares with the row before it. 0 for the first row."""

    @classmethod
    def from_rows(cls, batch: TokenBatch, rows: NDArray[np.int64]) -> PrefixTree:
        """Sort `rows`, (n_row,) row ids."""
        inputs = {row: batch.tokens[batch.row_offsets[row] : batch.row_offsets[row + 1] - 1] for row in rows.tolist()}
        # In this byte order, the order of the bytes is the order of the tokens.
        order = sorted(inputs, key=lambda row: inputs[row].astype(">i4").tobytes())
        lengths = np.array([len(inputs[row]) for row in order], np.int64)
        shared = np.zeros(len(order), np.int64)
        for index in range(1, len(order)):
            common = _common(inputs[order[index - 1]], inputs[order[index]])
            if lengths[index] - common < WORTH_SHARING * common:
                shared[index] = common
        return cls(np.array(order, np.int64), lengths, shared)

    def cut(self, max_tokens: int, enough: int) -> Iterator[PrefixTree]:
        """Yield trees of consecutive rows, each with at most `max_tokens` tokens, or `ROOM` times its first row's
        tokens.

        A tree's first row repeats its prefix. So a tree with `enough` tokens ends before a row whose prefix is short
        compared with the tree. A tree that reaches the limit ends before the row with the shortest prefix in its second
        half.
        """
        new, start = self.lengths - self.shared, 0
        while start < len(self.rows):
            end, width, cut = start + 1, int(self.lengths[start]), None
            limit = max(max_tokens, int(ROOM * width))
            while end < len(self.rows) and width + new[end] <= (limit if self.shared[end] else max_tokens):
                if width >= enough and self.shared[end] <= REPEATED * width:
                    break
                if width >= limit / 2 and (cut is None or self.shared[end] <= self.shared[cut]):
                    cut = end
                width += int(new[end])
                end += 1
            while end < len(self.rows) and new[end] == 0:  # equal rows stay together
                end += 1
            if end < len(self.rows) and cut is not None and self.shared[cut] < self.shared[end]:
                end = cut
            shared = self.shared[start:end].copy()
            shared[0] = 0
            yield PrefixTree(self.rows[start:end], self.lengths[start:end], shared)
            start = end

    def paths(self) -> NDArray[np.int64]:
        """Return the places of each row's tokens in the sequence, (n_row, longest). Entries after a row's end vary."""
        n_row, columns = len(self.rows), np.arange(self.lengths.max())
        new = self.lengths - self.shared
        first = np.cumsum(new) - new - self.shared
        """Place of a row's new token minus its position."""
        # A token belongs to the last row, up to its own, that does not share the token's position.
        owners = np.where(columns >= self.shared[:, None], np.arange(n_row)[:, None], 0)
        return np.asarray(first[np.maximum.accumulate(owners, axis=0)] + columns)


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return the number of equal first tokens."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Rows of a batch in one sequence. Each common prefix is computed once.

    An entry is a place with the token that follows it in a row. Rows with a common prefix share the entries of its
    sampled tokens.
    """

    input_ids: Tensor
    """Tokens of the sequence, (1, width) int64. Padding has no entry."""
    position_ids: Tensor
    """Positions of these tokens in their rows, (1, width) int64."""
    row_ends: list[RowEnds]
    """The rows' tokens in groups, for attention."""
    places: Tensor
    """Place of each entry in the sequence, (n_entry,) int64."""
    following: Tensor
    """Token that follows each place, (n_entry,) int64."""
    entries: Tensor
    """Entry of each sampled token, (n_sampled,) int64."""
    source: NDArray[np.int64]
    """Index of each sampled token in the TokenBatch, (n_sampled,). Tokens of a row are consecutive."""
    row_ids: Tensor
    """Each sampled token's row, (n_sampled,) int64."""

    def at(self, chosen: NDArray[np.int64]) -> MicroBatch:
        """Return the same sequence with only the sampled tokens `chosen`, (n,) indices."""
        (indices,) = to_device(self.entries.device, chosen)
        return replace(self, entries=self.entries[indices], source=self.source[chosen], row_ids=self.row_ids[indices])

    def column(self, values: NDArray[np.float32]) -> Tensor:
        """Return the sampled tokens' entries, (n_sampled,), in a column of the TokenBatch, (n_token,)."""
        return to_device(self.entries.device, values[self.source])[0]


def sampled_places(batch: TokenBatch) -> NDArray[np.int64]:
    """Return the number of sampled tokens before each token of the batch, (n_token,)."""
    return np.cumsum(batch.loss_mask, dtype=np.int64) - batch.loss_mask


def micro_batches(
    batch: TokenBatch, rows: NDArray[np.int64], max_tokens: int, device: torch.device
) -> Iterator[MicroBatch]:
    """Split `rows` into micro-batches of at most `max_tokens` tokens. With a long row, they may have more.

    Rows without a sampled token are skipped, because they would add exactly 0 to the gradient.
    """
    rows = rows[sampled_per_row(batch)[rows] > 0]
    enough = ENOUGH_ON_CPU if device.type == "cpu" else ENOUGH
    for tree in PrefixTree.from_rows(batch, rows).cut(max_tokens // FEWEST_ROWS * FEWEST_ROWS, enough):
        yield _micro_batch(batch, tree, device)


def _micro_batch(batch: TokenBatch, tree: PrefixTree, device: torch.device) -> MicroBatch:
    paths, lengths = tree.paths(), tree.lengths[:, None]
    columns = np.arange(paths.shape[1])
    source = batch.row_offsets[tree.rows][:, None] + columns
    new = (columns >= tree.shared[:, None]) & (columns < lengths)
    width = int(new.sum())
    ids, positions = (np.zeros((1, width + -width % FEWEST_ROWS), np.int64) for _ in range(2))
    ids[0, :width] = batch.tokens[source[new]]
    positions[0, :width] = np.broadcast_to(columns, new.shape)[new]
    # No token predicts the first token of a row.
    following = np.where(columns < lengths, source + 1, 0)
    sampled = (columns < lengths) & batch.loss_mask[following]
    pairs = paths[sampled] << 32 | batch.tokens[following[sampled]].astype(np.int64)
    pairs, entries = np.unique(pairs, return_inverse=True)
    source = following[sampled]
    row_ids = np.broadcast_to(tree.rows[:, None], sampled.shape)[sampled]
    arrays = (ids, positions, pairs >> 32, pairs & 0xFFFFFFFF, entries, row_ids)
    input_ids, position_ids, places, targets, entry_ids, rows = to_device(device, *arrays)
    return MicroBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        row_ends=group_row_ends(paths, tree.shared, tree.lengths),
        places=places,
        following=targets,
        entries=entry_ids,
        source=source,
        row_ids=rows,
    )
