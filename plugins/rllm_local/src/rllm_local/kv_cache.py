"""Keys and values of many conversations, one slot each, in the form Hugging Face models expect of a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, DynamicLayer


class Copy(NamedTuple):
    """The first `length` positions of a slot, for others."""

    source: int
    targets: list[int]
    length: int


def together(copies: Sequence[Copy]) -> list[Copy]:
    """The same copies in the same order, neighbours from one source as one."""
    merged: list[Copy] = []
    for copy in copies:
        if merged and merged[-1][::2] == copy[::2]:
            merged[-1].targets.extend(copy.targets)
        else:
            merged.append(Copy(copy.source, list(copy.targets), copy.length))
    return merged


WORTH_READING = 2
"""A range of slots is read as it is up to this many times the slots that are needed of it."""


@dataclass(frozen=True, eq=False)
class CacheView:
    """Which slots one forward pass reads and where it writes."""

    slots: Tensor | slice
    """The slots read, ``n_slot``: a slice, of which nothing is copied, or the rows' slots."""
    rows: Tensor | None
    """(n_row,) int64 where each row's slot is among those read; None: they are the same, row by row."""
    write_positions: Tensor
    """(n_row * n_query,) flat positions of the new tokens; padding goes to a slot nobody reads."""
    length: int
    """Positions read of each slot."""


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, each (slots + 1, positions, heads, head size). The last slot takes padding.

    A subclass of a complete layer: releases of transformers add abstract methods to the base class of layers.
    """

    def __init__(self, slots: int, positions: int) -> None:
        super().__init__()
        self._shape = (slots + 1, positions)
        self.view: CacheView | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        heads, size = key_states.shape[1], key_states.shape[3]
        self.keys = key_states.new_zeros((*self._shape, heads, size))
        self.values = value_states.new_zeros((*self._shape, value_states.shape[1], value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens' states, (n_row, heads, n_query, size), and return all states of the rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.view is not None
        return self._exchange(self.keys, key_states), self._exchange(self.values, value_states)

    def _exchange(self, store: Tensor, states: Tensor) -> Tensor:
        assert self.view is not None
        flat = store.view(-1, *store.shape[2:])
        flat.index_copy_(0, self.view.write_positions, states.transpose(1, 2).reshape(-1, *store.shape[2:]))
        return store[self.view.slots, : self.view.length].transpose(1, 2)

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """Copy the first `length` positions of a slot to others."""
        for store in (self.keys, self.values):
            store[targets, :length] = store[source, :length].clone()

    def grow(self, slots: int, positions: int) -> None:
        """Make room, keeping what is cached in the slots that remain."""
        self._shape = (slots + 1, positions)
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((*self._shape, *old.shape[2:]))
            kept_slots, kept_positions = min(slots, old.shape[0] - 1), min(positions, old.shape[1])
            new[:kept_slots, :kept_positions] = old[:kept_slots, :kept_positions]
            setattr(self, name, new)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        assert self.view is not None
        return self.view.length, 0

    def get_seq_length(self) -> int:
        return 0 if self.view is None else self.view.length


def as_needed(length: int) -> int:
    """Read the positions that the longest row needs, and no more."""
    return length


@dataclass(frozen=True)
class PassShape:
    """Sizes of the products in a pass. `same_bits` chooses sizes that give a row the same bits in every pass."""

    fewest_rows: int = 1
    """Minimum number of rows of a product, and of queries of an attention."""
    positions_to_read: Callable[[int], int] = as_needed
    """Return how many positions a pass reads of each slot, given how many its longest row needs."""


AS_NEEDED = PassShape()


class SlotCache(Cache):  # type: ignore[misc]
    """Slots of all layers."""

    def __init__(self, layers: int, slots: int, positions: int, shape: PassShape = AS_NEEDED) -> None:
        self.slots = slots
        self.positions = positions
        self.shape = shape
        super().__init__(layers=[SlotLayer(slots, positions) for _ in range(layers)])

    def select(
        self, slots: NDArray[np.int64], writes: NDArray[np.int64], length: int, device: torch.device
    ) -> CacheView:
        """Say which rows the next forward pass is about.

        Args:
            slots: (n_row,) slot of each row.
            writes: (n_row, n_query) position of each new token in its slot, -1 for padding.
            length: positions that the longest row needs; the view may read more.
        """
        flat = np.where(writes < 0, self.slots * self.positions, slots[:, None] * self.positions + writes)
        read, rows = _read(slots, one_query=writes.shape[1] == 1)
        view = CacheView(
            slots=read if isinstance(read, slice) else torch.from_numpy(read).to(device),
            rows=None if rows is None else torch.from_numpy(rows).to(device),
            write_positions=torch.from_numpy(flat.reshape(-1)).to(device),
            length=min(self.shape.positions_to_read(length), self.positions),
        )
        for layer in self.layers:
            layer.view = view
        return view

    @torch.inference_mode()
    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy the beginnings of slots to others, one after the other."""
        for layer in self.layers:
            for source, targets, length in copies:
                layer.copy(source, targets, length)

    def grow(self, slots: int, positions: int) -> None:
        """Change the number of slots and positions; slots beyond the new number lose what they hold."""
        self.slots, self.positions = slots, positions
        for layer in self.layers:
            layer.grow(slots, positions)


def _read(slots: NDArray[np.int64], *, one_query: bool) -> tuple[slice | NDArray[np.int64], NDArray[np.int64] | None]:
    """Which slots to read, and where the rows are among them.

    Attention over slots that no row needs costs less than a copy of those that rows need, where most are needed and
    every row has one query.
    """
    first = int(slots.min())
    span = int(slots.max()) + 1 - first
    if span == len(slots) and (slots[1:] > slots[:-1]).all():
        return slice(first, first + span), None
    if one_query and span <= WORTH_READING * len(slots):
        return slice(first, first + span), slots - first
    return slots, None
