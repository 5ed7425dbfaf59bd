"""Keys and values of many conversations, one slot each, in the form Hugging Face models expect of a cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, DynamicLayer


@dataclass(frozen=True, eq=False)
class CacheView:
    """Which slots one forward pass reads and where it writes."""

    slots: Tensor | slice
    """The rows' slots: a slice when they are the first slots in order (nothing is copied), else their indices."""
    write_positions: Tensor
    """(n_row * n_query,) flat positions of the new tokens; padding goes to a slot nobody reads."""
    length: int
    """Positions read of each slot."""


class SlotLayer(DynamicLayer):
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


class SlotCache(Cache):
    """All layers' slots."""

    def __init__(self, layers: int, slots: int, positions: int) -> None:
        self.slots = slots
        self.positions = positions
        super().__init__(layers=[SlotLayer(slots, positions) for _ in range(layers)])

    def select(self, slots: NDArray[np.int64], writes: NDArray[np.int64], length: int, device: torch.device) -> None:
        """Say which rows the next forward pass is about.

        Args:
            slots: (n_row,) slot of each row.
            writes: (n_row, n_query) position of each new token in its slot, -1 for padding.
            length: positions to read.
        """
        flat = np.where(writes < 0, self.slots * self.positions, slots[:, None] * self.positions + writes)
        in_order = bool((slots == np.arange(len(slots))).all())
        view = CacheView(
            slots=slice(0, len(slots)) if in_order else torch.from_numpy(slots).to(device),
            write_positions=torch.from_numpy(flat.reshape(-1)).to(device),
            length=length,
        )
        for layer in self.layers:
            layer.view = view

    def grow(self, slots: int, positions: int) -> None:
        """Change the number of slots and positions; slots beyond the new number lose what they hold."""
        self.slots, self.positions = slots, positions
        for layer in self.layers:
            layer.grow(slots, positions)
