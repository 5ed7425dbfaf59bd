"""Exact attention of new tokens over the pages of their conversations, on a CPU.

When each conversation has one new token, a page is read once for all conversations that share it: their queries are
one matrix (Hydragen, Juravsky et al. 2024, arXiv:2402.05099). The pages' results are then added for each conversation.
`exact_attention.attend_to_blocks` adds them in the same way and order, so the bits are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from rllm_local.exact_attention import BLOCK, FEWEST_ROWS, Layout, attend_to_blocks, block_masks
from rllm_local.kv_cache import layer_of
from rllm_local.pages import HALF

WORTH_READING = 8
"""Minimum number of adjacent pages that are read without a copy. For fewer, one copy costs less than several calls."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class PromptLayout(Layout):
    """Layout of several new tokens of each conversation. Each conversation reads its pages separately."""

    def __init__(
        self,
        pages: Sequence[Sequence[int]],
        positions: NDArray[np.int64],
        window: int | None,
        dtype: torch.dtype,
    ) -> None:
        """Create the layout of a pass.

        Args:
            pages: numbers of the pages of each conversation, in order.
            positions: (n_row, n_query) positions of the queries. `FEWEST_ROWS` divides ``n_query``.
            window: number of positions that a query sees, counted back from its own. None for all earlier ones.
            dtype: the queries' dtype.
        """
        count = max(map(len, pages))
        numbers = np.zeros((len(pages), count), np.int64)
        for row, each in enumerate(pages):
            numbers[row, : len(each)] = each
        self._read = _adjacent_or_each(numbers.reshape(-1))
        self._shape = (len(pages), count * BLOCK)
        # Only half of each of the first two pages is used.
        self._masks = tuple(
            replace(mask, keys=slice(index * BLOCK, index * BLOCK + mask.keys.stop - mask.keys.start))
            for index, mask in enumerate(block_masks(positions, window, dtype))
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        layer = layer_of(key)
        keys, values = (
            _read(store, self._read).reshape(*self._shape, *store.shape[2:]).transpose(1, 2)
            for store in (layer.keys, layer.values)
        )
        size = values.shape[-1]
        values = pad(values, (0, query.shape[-1] - size))
        return attend_to_blocks(query, keys, values, self._masks, scale)[0][..., :size].to(query.dtype)


@dataclass(frozen=True, eq=False)
class _Part:
    """Pages with as many positions, and with queries of as many conversations."""

    pages: slice | Tensor
    positions: int
    """Number of used positions of each page."""
    count: int
    readers: slice
    """Place of the pages' queries among all that are read."""
    mask: Tensor
    """Number that is added to a score, (n_page or 1, 1, n_query or 1, positions)."""


@dataclass(frozen=True, eq=False)
class _Plan:
    readers: Tensor
    """Conversation of each query that is read. A conversation is read once for each of its pages."""
    parts: Sequence[_Part]
    results: Tensor
    """Places among the parts' results: first pages of the conversations, then second pages, …"""


class DecodeLayout(Layout):
    """Layout of one new token of each conversation, the last query of the pass."""

    def __init__(
        self,
        pages: Sequence[Sequence[int]],
        positions: NDArray[np.int64],
        window: int | None,
        dtype: torch.dtype,
    ) -> None:
        """Create the layout of a pass. The arguments equal `PromptLayout`'s, but `positions` is (n_row,)."""
        counts = np.array([len(each) for each in pages])
        skipped = np.zeros_like(counts)
        if window is not None:
            first = np.maximum(positions - window + 1, 0)
            skipped = np.where(first < HALF, 0, first // BLOCK + 1)
        # Sorted by the number of pages, so that the conversations with many pages come first.
        self._order = np.argsort(skipped - counts, kind="stable")
        counts, skipped = (counts - skipped)[self._order], skipped[self._order]
        numbers = np.concatenate([pages[row][skip:] for row, skip in zip(self._order, skipped, strict=True)])
        self._rows = np.repeat(np.arange(len(counts)), counts)
        self._rank = np.arange(len(numbers)) - np.repeat(counts.cumsum() - counts, counts)
        index = self._rank + np.repeat(skipped, counts)
        """Index of each page in its conversation."""
        self._starts = np.where(index < 2, index * HALF, (index - 1) * BLOCK)
        self._numbers, self._inverse, self._sharers = np.unique(numbers, return_inverse=True, return_counts=True)
        self._positions, self._window = positions[self._order], window
        self._dtype = dtype
        self._n_at = np.bincount(self._rank).tolist()
        self._plans: dict[int, _Plan] = {}
        same = (self._order[1:] > self._order[:-1]).all()
        self._back = None if same else torch.from_numpy(np.argsort(self._order))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        layer = layer_of(key)
        n_row, heads, width, size = query.shape
        key_heads, value_size = layer.keys.shape[2], layer.values.shape[3]
        shared = heads // key_heads
        plan = self._plans.get(shared) or self._plans.setdefault(shared, self._plan(shared))
        # The query heads that share a key head become queries of one attention.
        queries = query[:, :, -1].reshape(n_row, key_heads, shared, size).transpose(0, 1).index_select(1, plan.readers)
        outputs, totals = [], []
        for part in plan.parts:
            of_part = queries[:, part.readers].reshape(key_heads, part.count, -1, size).transpose(0, 1)
            keys, values = (
                _read(store, part.pages)[:, : part.positions].transpose(1, 2) for store in (layer.keys, layer.values)
            )
            output, total = _attend_in_blocks(of_part, keys, values, part.mask, scale)
            outputs.append(output.transpose(1, 2).reshape(-1, shared, key_heads, value_size))
            totals.append(total.transpose(1, 2).reshape(-1, shared, key_heads))
        output, total = (torch.cat(each).index_select(0, plan.results) for each in (outputs, totals))
        merged = _merge_in_order(output.to(total.dtype), total, self._n_at)
        if self._back is not None:
            merged = merged.index_select(0, self._back)
        merged = merged.transpose(1, 2).reshape(n_row, heads, 1, value_size).to(query.dtype)
        return merged if width == 1 else pad(merged, (0, 0, width - 1, 0))

    def _plan(self, shared: int) -> _Plan:
        """Return the plan for layers in which `shared` query heads share a key head."""
        fewest = FEWEST_ROWS // math.gcd(FEWEST_ROWS, shared)
        width = fewest * 2 ** np.ceil(np.log2(np.maximum(self._sharers / fewest, 1))).astype(np.int64)
        """Number of queries per page: a few different ones, so that there are a few parts."""
        first = np.zeros(len(self._numbers), np.int64)
        first[self._inverse] = self._starts
        size = np.where(first < BLOCK, HALF, BLOCK)
        by_page = np.argsort(self._inverse, kind="stable")
        place = np.empty_like(by_page)
        place[by_page] = np.arange(len(by_page)) - np.repeat(self._sharers.cumsum() - self._sharers, self._sharers)
        readers, parts, results, total = [], [], np.empty_like(by_page), 0
        for kind in np.unique(np.stack((width, size)), axis=1).T.tolist():
            of_kind = ((width == kind[0]) & (size == kind[1])).nonzero()[0]
            for pages in _split(self._numbers, of_kind):
                slots = np.full(len(self._numbers), -1)
                slots[pages] = np.arange(len(pages))
                entries = (slots[self._inverse] >= 0).nonzero()[0]
                page, column = slots[self._inverse[entries]], place[entries]
                rows = np.zeros((len(pages), kind[0]), np.int64)
                rows[page, column] = self._rows[entries]
                results[entries] = total + page * kind[0] + column
                read = _adjacent_or_each(self._numbers[pages])
                seen_by = rows[:, :1] if self._sharers[pages].max() == 1 else rows.repeat(shared, axis=1)
                mask = self._mask(first[pages], seen_by, kind[1])
                parts.append(_Part(read, kind[1], len(pages), slice(total, total + rows.size), mask))
                readers.append(self._order[rows.reshape(-1)])
                total += rows.size
        order = np.lexsort((self._rows, self._rank))
        return _Plan(torch.from_numpy(np.concatenate(readers)), parts, torch.from_numpy(results[order]))

    def _mask(self, first: NDArray[np.int64], rows: NDArray[np.int64], size: int) -> Tensor:
        """Return `_Part.mask`. `first` are the pages' first positions, and `rows` the conversations of each query."""
        keys, positions = first[:, None, None] + np.arange(size), self._positions[rows][:, :, None]
        hidden = keys > positions
        if self._window is not None:
            hidden |= keys <= positions - self._window
        if not hidden.any():
            hidden = hidden[:1, :1]
        mask = torch.zeros((len(hidden), 1, *hidden.shape[1:]), dtype=self._dtype)
        mask.masked_fill_(torch.from_numpy(hidden)[:, None], torch.finfo(self._dtype).min)
        return mask


def _merge_in_order(outputs: Tensor, totals: Tensor, n_at: Sequence[int]) -> Tensor:
    """Return the attention of each conversation over all of its pages, (n_row, query heads, key heads, size) float32.

    Args:
        outputs: (n, query heads, key heads, size) float32, attention over the first page of each conversation,
            then over the second page, … A conversation with fewer pages comes later.
        totals: (n, query heads, key heads) float32, logarithms of the sums of exponentials.
        n_at: number of first pages, of second pages, …
    """
    count = n_at[0]
    merged, sums, shares = outputs[:count], totals[:count], [totals.new_empty(0, *totals.shape[1:])]
    old_shares, start = [], count
    for count in n_at[1:]:
        old, new = sums[:count], totals[start : start + count]
        largest = torch.maximum(old, new)
        old_weight, weight = (old - largest).exp_(), (new - largest).exp_()
        both = old_weight + weight
        old_shares.append((old_weight / both)[..., None])
        shares.append(weight / both)
        old.copy_(largest + both.log_())
        start += count
    later, start = outputs[n_at[0] :].mul_(torch.cat(shares)[..., None]), 0
    for old_share, count in zip(old_shares, n_at[1:], strict=True):
        merged[:count].mul_(old_share).add_(later[start : start + count])
        start += count
    return merged


def _attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return outputs, (n, heads, n_query, size), and logarithms of the sums of exponentials, (n, heads, n_query)."""
    size = value.shape[-1]
    value = pad(value, (0, query.shape[-1] - size)) if size < query.shape[-1] else value
    output, total = _flash(query, key, value, 0.0, False, attn_mask=mask, scale=scale)
    return output[..., :size], total


def _split(numbers: NDArray[np.int64], chosen: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split the chosen indices of pages, sorted by number, into those that are adjacent and the others."""
    ends = [*((np.diff(numbers[chosen]) > 1).nonzero()[0] + 1).tolist(), len(chosen)]
    runs = [chosen[start:end] for start, end in pairwise([0, *ends])]
    others = [run for run in runs if len(run) < WORTH_READING]
    long_runs = [run for run in runs if len(run) >= WORTH_READING]
    return [*long_runs, np.concatenate(others)] if others else long_runs


def _adjacent_or_each(numbers: NDArray[np.int64]) -> slice | Tensor:
    """Return the pages as a slice, which is read without a copy, or as a tensor of numbers."""
    first = int(numbers[0])
    if (numbers == np.arange(first, first + len(numbers))).all():
        return slice(first, first + len(numbers))
    return torch.from_numpy(numbers)


def _read(store: Tensor, pages: slice | Tensor) -> Tensor:
    """Return pages, (n_page, BLOCK, heads, size). A slice is a view."""
    return store[pages] if isinstance(pages, slice) else store.index_select(0, pages)
