"""Attention for training: rows share one sequence, which contains each common prefix once.

A token sees the tokens of its row up to itself. So a row's keys are gathered from the whole sequence, and only the
tokens that the row does not share with earlier rows are its queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from rllm_local.exact_attention import (
    FEWEST_ROWS,
    BlockMask,
    Layout,
    additive_mask,
    attend_to_blocks,
    blocks,
    carry,
    complete_blocks,
    cut_into_blocks,
    flash_gradient,
    is_exact,
    let_layers_read_layouts,
    whole_blocks,
)
from rllm_local.torch_attention import attend_in_groups, can_group_heads
from rllm_local.transfer import to_device


@dataclass(frozen=True, eq=False)
class RowEnds:
    """The ends of rows with similar lengths. Each end begins after the tokens that an earlier row also has.

    A place is the index of a token in the sequence.
    """

    queries: NDArray[np.int64]
    """(n, n_query) places of the ends' tokens, -1 for padding."""
    positions: NDArray[np.int64]
    """(n or 1, n_query) positions of these tokens in their row. One row if the ends begin at the same position."""
    keys: NDArray[np.int64]
    """(n, n_key) places of the rows' tokens, 0 for padding. ``n_key`` is a number of whole blocks."""
    common: int
    """Number of first keys that all rows share and all queries see: whole blocks. 0 for one row."""

    def split(self) -> Iterator[RowEnds]:
        """Yield parts of the rows, each with at most `MOST_KEYS` keys if it has several rows."""
        size = max(1, MOST_KEYS // self.keys.shape[1])
        for start in range(0, len(self.keys), size):
            part = slice(start, start + size)
            positions = self.positions if len(self.positions) == 1 else self.positions[part]
            yield RowEnds(self.queries[part], positions, self.keys[part], 0)


def group_row_ends(paths: NDArray[np.int64], shared: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[RowEnds]:
    """Return the ends of rows, in groups of rows with similar lengths.

    Args:
        paths: (n_row, longest) places of each row's tokens.
        shared: (n_row,) number of first tokens that an earlier row also has.
        lengths: (n_row,) number of tokens.
    """
    new = lengths - shared
    trunks = _trunks(paths, shared)
    order = np.lexsort((lengths, new, trunks, shared > 0))
    groups: list[list[int]] = []
    longest = real = 0
    for row in order[new[order] > 0].tolist():
        n_query, n_key, is_whole = int(new[row]), int(lengths[row]), bool(shared[row] == 0)
        if trunks[row] >= 0:
            # The group reads its first keys once.
            n_key -= complete_blocks(int(shared[row]))
        if groups and is_whole == (shared[groups[-1][0]] == 0) and trunks[row] == trunks[groups[-1][0]]:
            longest = max(longest, n_key)
            real += n_query * n_key
            n_row = len(groups[-1]) + 1
            if n_query * longest * n_row <= MOST_PADDED * real + PAIRS and longest * n_row <= MOST_KEYS:
                groups[-1].append(row)
                continue
        groups.append([row])
        longest, real = n_key, n_query * n_key
    return [_group(paths, shared, lengths, np.array(each)) for each in groups]


MOST_PADDED = 1.25
"""Maximum number of pairs of queries and keys with padding, per pair without."""
PAIRS = 1 << 14
"""Number of pairs that cost as much as the calls of one more group."""
MOST_KEYS = 1 << 14
"""Maximum number of keys in a group with several rows, without common keys. Rows gather these keys once for each row,
so without a limit they could be many times the micro-batch."""


def _trunks(paths: NDArray[np.int64], shared: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place at which each row leaves the blocks that it shares with other rows, (n_row,), or -1."""
    ends = np.array([complete_blocks(int(each)) for each in shared], np.int64)
    places = np.where(ends > 0, paths[np.arange(len(paths)), ends - 1], -1)
    _, inverse, counts = np.unique(places, return_inverse=True, return_counts=True)
    return np.where(counts[inverse] > 1, places, -1)


def _group(
    paths: NDArray[np.int64], shared: NDArray[np.int64], lengths: NDArray[np.int64], rows: NDArray[np.int64]
) -> RowEnds:
    start, length = shared[rows, None], lengths[rows, None]
    n_query = int((length - start).max())
    positions = np.minimum(start + np.arange(n_query + -n_query % FEWEST_ROWS), length.max() - 1)
    real = np.arange(positions.shape[1]) < length - start
    keys = np.zeros((len(rows), whole_blocks(int(length.max()))), np.int64)
    width = min(keys.shape[1], paths.shape[1])
    keys[:, :width] = np.where(np.arange(width) < length, paths[rows, :width], 0)
    queries = np.where(real, np.take_along_axis(keys, np.where(real, positions, 0), axis=1), -1)
    common = 0
    if len(rows) > 1:
        equal = (keys == keys[0])[:, : int(start.min())].all(axis=0)
        common = complete_blocks(len(equal) if equal.all() else int(equal.argmin()))
    if (start == start[0]).all():
        # The rows share a mask. Padding may see any keys.
        return RowEnds(queries, positions[:1], keys, common)
    return RowEnds(queries, np.where(real, positions, common), keys, common)


def carry_trees(model: Any, row_ends: Sequence[RowEnds]) -> Tensor | dict[str, Tensor]:
    """Return the `attention_mask` with which a model's layers compute attention over rows that share a sequence.

    Raises:
        ValueError: the model's layers cannot read layouts.
    """
    let_layers_read_layouts(model)

    def layout(window: int | None) -> Layout:
        if is_exact(model):
            return ExactTrees(row_ends, window, model.dtype)
        parts = (part for each in row_ends for part in each.split())
        return _Trees([_Part(part, window, model.dtype, model.device) for part in parts])

    return carry(model.config.get_text_config(), layout)


class _Part:
    """Tensors of the ends of rows, with their mask."""

    def __init__(self, row_ends: RowEnds, window: int | None, dtype: torch.dtype, device: torch.device) -> None:
        self.queries, self.keys, positions = to_device(device, row_ends.queries, row_ends.keys, row_ends.positions)
        self.mask: Tensor | None = None
        """An `additive_mask`. None if the ends are whole rows, whose queries see all earlier keys."""
        if window is None and not row_ends.positions[:, 0].any() and can_group_heads(device, dtype):
            self.keys = self.keys[:, : self.queries.shape[1]]
        else:
            self.mask = additive_mask(positions, self.keys.shape[1], window, dtype)


def _by_place(states: Tensor) -> Tensor:
    """Return states, (1, heads, width, size), as (width, heads, size)."""
    return states[0].transpose(0, 1)


def _in_heads(states: Tensor) -> Tensor:
    """Return states, (width, heads, size), as (1, heads, width, size)."""
    return states.transpose(0, 1)[None]


@dataclass(frozen=True, eq=False)
class _Trees(Layout):
    """Trees with torch's attention, which is not exact."""

    parts: list[_Part]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        queries, keys, values = (_by_place(each) for each in (query, key, value))
        # The last place receives the results of padding.
        output = query.new_zeros((len(queries) + 1, *queries.shape[1:]))
        for part in self.parts:
            # Rows with a common prefix gather its keys once each. They are gathered again for the gradient.
            result = checkpoint(
                _attend_to_rows, queries, keys, values, part, scale, use_reentrant=False, preserve_rng_state=False
            )
            output = output.index_put((part.queries,), result)
        return output[None, :-1].transpose(1, 2)


def _attend_to_rows(queries: Tensor, keys: Tensor, values: Tensor, part: _Part, scale: float) -> Tensor:
    """Return the outputs of the ends of rows, (n, n_query, heads, size)."""
    query = queries[part.queries].transpose(1, 2)
    key, value = keys[part.keys].transpose(1, 2), values[part.keys].transpose(1, 2)
    if part.mask is None:
        output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    else:
        output = attend_in_groups(query, key, value, part.mask, scale)
    return output.transpose(1, 2)


class _ExactPart:
    """Tensors of the ends of rows. Their common keys are read once for all rows."""

    def __init__(self, row_ends: RowEnds, window: int | None, dtype: torch.dtype) -> None:
        common = row_ends.common if window is None else 0
        self.queries = torch.from_numpy(row_ends.queries)
        self.common = torch.from_numpy(row_ends.keys[0, :common])
        self.common_blocks = tuple(BlockMask(block, 0, None) for block in blocks(common)) if common else ()
        self.keys = torch.from_numpy(row_ends.keys[:, common:])
        own = torch.from_numpy(row_ends.positions - common)
        mask = additive_mask(own, self.keys.shape[1], window, dtype)
        self.blocks = cut_into_blocks(mask, row_ends.positions, common)
        self.is_causal = window is None and not row_ends.positions[:, 0].any()
        """True if the ends are whole rows."""
        self.mask = None if self.is_causal else mask
        if self.is_causal:
            self.keys_of_gradient = self.keys[:, : self.queries.shape[1]]
        else:
            self.keys_of_gradient = self.keys

    def merge_rows(self, states: Tensor) -> Tensor:
        """Return the queries' states, (n, n_query, heads, ...), in one row, (1, heads, n · n_query, ...)."""
        return states.flatten(0, 1).transpose(0, 1)[None]

    def split_rows(self, states: Tensor) -> Tensor:
        """Return the states of one row, (1, heads, n · n_query, ...), by row, (n, heads, n_query, ...)."""
        return states[0].reshape(states.shape[1], *self.queries.shape, *states.shape[3:]).transpose(0, 1)


class ExactTrees(Layout):
    """Trees with exact attention."""

    def __init__(self, row_ends: Sequence[RowEnds], window: int | None, dtype: torch.dtype) -> None:
        parts = row_ends if window is None else [part for each in row_ends for part in each.split()]
        self._parts = [_ExactPart(each, window, dtype) for each in parts]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        states = (_by_place(each) for each in (query, key, value))
        output: Tensor = _Attention.apply(*states, self, scale)  # type: ignore[no-untyped-call]
        return output[None].transpose(1, 2)

    def outputs(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return outputs (width + 1, heads, size), and logarithms of the sums of exponentials (width + 1, heads).

        The last place is padding. Its sum is infinite, so that its gradient is 0.
        """
        output = query.new_zeros((len(query) + 1, *query.shape[1:]))
        total = torch.full(output.shape[:2], torch.inf, dtype=torch.promote_types(query.dtype, torch.float32))
        for part in self._parts:
            queries, earlier = query[part.queries], None
            if part.common_blocks:
                keys, values = (_in_heads(states[part.common]) for states in (key, value))
                found = attend_to_blocks(part.merge_rows(queries), keys, values, part.common_blocks, scale)
                earlier = part.split_rows(found[0]), part.split_rows(found[1])
            keys, values = (states[part.keys].transpose(1, 2) for states in (key, value))
            result = attend_to_blocks(queries.transpose(1, 2), keys, values, part.blocks, scale, earlier)
            output[part.queries] = result[0].transpose(1, 2).to(query.dtype)
            total[part.queries] = result[1].transpose(1, 2)
        output[-1], total[-1] = 0, torch.inf
        return output, total

    def gradients(
        self, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, total: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of query, key and value, (width, heads, size) each.

        The gradient is computed over all keys at once, from the results of `outputs`.
        """
        of_query = torch.zeros_like(output)
        of_key, of_value = (torch.zeros_like(each, dtype=total.dtype) for each in (key, value))
        for part in self._parts:
            asked, answer, results, sums = (each[part.queries] for each in (query, gradient, output, total))
            of_queries, *of_own = flash_gradient(
                answer.transpose(1, 2),
                asked.transpose(1, 2),
                key[part.keys_of_gradient].transpose(1, 2),
                value[part.keys_of_gradient].transpose(1, 2),
                results.transpose(1, 2),
                sums.transpose(1, 2),
                part.mask,
                scale,
                is_causal=part.is_causal,
            )
            if part.common_blocks:
                share, *of_common = flash_gradient(
                    part.merge_rows(answer),
                    part.merge_rows(asked),
                    _in_heads(key[part.common]),
                    _in_heads(value[part.common]),
                    part.merge_rows(results),
                    part.merge_rows(sums),
                    None,
                    scale,
                    is_causal=False,
                )
                of_queries += part.split_rows(share)
                for totals, found in zip((of_key, of_value), of_common, strict=True):
                    totals.index_add_(0, part.common, _by_place(found).to(total.dtype))
            of_query[part.queries.flatten()] = of_queries.transpose(1, 2).flatten(0, 1)
            for totals, found in zip((of_key, of_value), of_own, strict=True):
                places = part.keys_of_gradient.flatten()
                totals.index_add_(0, places, found.transpose(1, 2).flatten(0, 1).to(total.dtype))
        return of_query[:-1], of_key.to(key.dtype), of_value.to(value.dtype)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, trees: ExactTrees, scale: float) -> Tensor:
        output, total = trees.outputs(query, key, value, scale)
        ctx.save_for_backward(query, key, value, output, total)
        ctx.trees, ctx.scale = trees, scale
        return output[:-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.trees.gradients(gradient, *ctx.saved_tensors, ctx.scale), None, None
