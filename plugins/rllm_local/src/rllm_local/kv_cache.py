"""A cache for the keys and values of many conversations, one slot each, with the Hugging Face cache interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, DynamicLayer


class Copy(NamedTuple):
    """A copy of a slot's first `length` positions to other slots."""

    source: int
    targets: list[int]
    length: int


def merge_copies(copies: Sequence[Copy]) -> list[Copy]:
    """Return the same copies in the same order, with consecutive copies from one source merged."""
    merged: list[Copy] = []
    for copy in copies:
        if merged and merged[-1][::2] == copy[::2]:
            merged[-1].targets.extend(copy.targets)
        else:
            merged.append(Copy(copy.source, list(copy.targets), copy.length))
    return merged


WORTH_READING = 2
"""A range of slots is read without a copy if it has at most this many times the number of needed slots."""


@dataclass(frozen=True, eq=False)
class CacheView:
    """The slots that one forward pass reads, and the positions to which it writes."""

    slots: Tensor | slice
    """The slots to read, ``n_slot``: a slice, which is not copied, or the rows' slots."""
    rows: Tensor | None
    """Index of each row's slot among the slots to read, (n_row,) int64. None if they are the same, row by row."""
    write_positions: Tensor
    """Flat positions of the new tokens, (n_row * n_query,). Padding is written to a slot that is never read."""
    length: int
    """Number of positions to read in each slot."""


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, each (slots + 1, positions, heads, head size). The last slot is for padding.

    It is a subclass of a concrete layer, because transformers releases add abstract methods to the layers' base class.
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
        """Write the new tokens' states, (n_row, heads, n_query, size), and return all of the rows' states."""
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
        """Change the size, and keep the cached states of the remaining slots."""
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


class SlotCache(Cache):  # type: ignore[misc]
    """The slots of all layers."""

    def __init__(self, layers: int, slots: int, positions: int) -> None:
        self.slots = slots
        self.positions = positions
        super().__init__(layers=[SlotLayer(slots, positions) for _ in range(layers)])

    def select(
        self, slots: NDArray[np.int64], writes: NDArray[np.int64], length: int, device: torch.device
    ) -> CacheView:
        """Select the rows of the next forward pass.

        Args:
            slots: (n_row,) slot of each row.
            writes: (n_row, n_query) position of each new token in its slot, -1 for padding.
            length: number of positions to read, at least those that the longest row needs.
        """
        flat = np.where(writes < 0, self.slots * self.positions, slots[:, None] * self.positions + writes)
        read, rows = _read(slots, one_query=writes.shape[1] == 1)
        view = CacheView(
            slots=read if isinstance(read, slice) else torch.from_numpy(read).to(device),
            rows=None if rows is None else torch.from_numpy(rows).to(device),
            write_positions=torch.from_numpy(flat.reshape(-1)).to(device),
            length=length,
        )
        for layer in self.layers:
            layer.view = view
        return view

    @torch.inference_mode()
    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy the first positions of slots to other slots, in order."""
        for layer in self.layers:
            for source, targets, length in copies:
                layer.copy(source, targets, length)

    def grow(self, slots: int, positions: int) -> None:
        """Change the number of slots and positions. Slots beyond the new number lose their contents."""
        self.slots, self.positions = slots, positions
        for layer in self.layers:
            layer.grow(slots, positions)


def _read(slots: NDArray[np.int64], *, one_query: bool) -> tuple[slice | NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the slots to read, and each row's index among them.

    If each row has one query and most slots of a range are needed, attention over the whole range costs less than a
    copy of the needed slots.
    """
    first = int(slots.min())
    span = int(slots.max()) + 1 - first
    if span == len(slots) and (slots[1:] > slots[:-1]).all():
        return slice(first, first + span), None
    if one_query and span <= WORTH_READING * len(slots):
        return slice(first, first + span), slots - first
    return slots, None
