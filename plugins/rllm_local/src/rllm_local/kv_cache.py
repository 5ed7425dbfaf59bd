"""A cache for the keys and values of many conversations in pages, with the Hugging Face cache interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicLayer

from rllm_local.decode_graphs import DecodeGraphs
from rllm_local.exact_attention import BLOCK
from rllm_local.transfer import to_device

GROWTH = 1.5
"""Factor by which the number of pages grows."""


class Copy(NamedTuple):
    """A copy of a page."""

    source: int
    target: int


class PageLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, each (pages, BLOCK, heads, head size). Page 0 receives padding.

    It is a subclass of a concrete layer, because transformers releases add abstract methods to the layers' base class.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0
        self.writes = torch.empty(0, dtype=torch.int64)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = (
            states.new_zeros((self.pages, BLOCK, states.shape[1], states.shape[3]))
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens' states, (n_row, heads, n_query, size).

        Return the new states. The layout of the pass finds this layer with `layer_of`, and reads its pages.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for store, states in ((self.keys, key_states), (self.values, value_states)):
            flat = store.view(-1, *store.shape[2:])
            flat.index_copy_(0, self.writes, states.transpose(1, 2).reshape(-1, *store.shape[2:]))
        key_states.rllm_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def grow(self, pages: int) -> None:
        """Change the number of pages. New pages are 0, because masked keys must be finite."""
        self.pages = pages
        if self.is_initialized:
            for name in ("keys", "values"):
                old = getattr(self, name)
                new = old.new_zeros((pages, *old.shape[1:]))
                new[: old.shape[0]] = old
                setattr(self, name, new)

    def prepare(self, sources: Tensor, targets: Tensor, clear: Tensor) -> None:
        """Set the pages `clear` to 0, because masked keys must be finite. Then copy pages."""
        for store in (self.keys, self.values):
            store.index_fill_(0, clear, 0)
            store.index_copy_(0, targets, store.index_select(0, sources))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0


def layer_of(key: Tensor) -> PageLayer:
    """Return the cache layer that wrote these keys in this pass."""
    layer: PageLayer = key.rllm_layer  # type: ignore[attr-defined]
    return layer


class PageCache(Cache):  # type: ignore[misc]
    """The pages of all layers."""

    def __init__(self, config: Any, limit: int) -> None:
        """Create a cache for a model's `config` that grows up to `limit` pages, in addition to page 0."""
        self._limit = limit
        self.graphs: DecodeGraphs | None = None
        self.pages = 0
        super().__init__(layers=[PageLayer() for _ in range(config.get_text_config().num_hidden_layers)])

    def prepare(self, highest: int, copies: Sequence[Copy], clear: Sequence[int], device: torch.device) -> None:
        """Prepare the pages for a forward pass.

        Args:
            highest: highest number of a page that the pass uses.
            copies: pages to copy first.
            clear: pages to set to 0 first.
            device: device of the keys and values.
        """
        self.graphs = self.graphs or DecodeGraphs(device)
        if highest >= self.pages:
            self.graphs.clear()
            self.pages = min(max(highest + 1, int(GROWTH * self.pages)), self._limit + 1)
            for layer in self.layers:
                layer.grow(self.pages)
        if copies or clear:
            pairs = np.array(copies, np.int64).reshape(-1, 2)
            # Padding may have written NaN to page 0 if the weights were not finite.
            clear = [0, *clear]
            numbers = to_device(device, pairs[:, 0], pairs[:, 1], np.array(clear, np.int64))
            for layer in self.layers:
                if layer.is_initialized:
                    layer.prepare(*numbers)

    def write_to(self, places: Tensor) -> None:
        """Let the next pass write its new tokens to these places in the pages, (n_row * n_query,) int64."""
        for layer in self.layers:
            layer.writes = places
