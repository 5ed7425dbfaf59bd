"""Attention over pages with torch's own kernels, on devices for which `exact_attention` has no kernel.

The pages of each conversation are gathered into rows, so that a layer needs few kernels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rllm_local.exact_attention import BLOCK, Layout
from rllm_local.kv_cache import layer_of
from rllm_local.pages import HALF
from rllm_local.transfer import to_device

NEVER = 1 << 40
"""Position of the unused half of a page, which no query sees."""


def can_group_heads(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if torch has a fused kernel without a mask for query heads that share key heads."""
    return device.type == "cpu" or dtype in (torch.float16, torch.bfloat16)


def attend_in_groups(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return torch's attention with a mask, (n, heads, n_query, size).

    With grouped heads and a mask, torch has no fused kernel for GPUs. So the query heads that share a key head become
    queries of that head. For several queries, which would need a larger mask, keys and values are repeated.

    Args:
        query: (n, heads, n_query, size).
        key: (n, key heads, n_key, size).
        value: like `key`.
        mask: number that is added to each score, (n or 1, 1, n_query, n_key).
        scale: factor of the scores.
    """
    n, heads, n_query, size = query.shape
    shared = heads // key.shape[1]
    if n_query > 1:
        key, value = (each.repeat_interleave(shared, dim=1) if shared > 1 else each for each in (key, value))
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    queries = query.reshape(n, key.shape[1], shared, size)
    output = scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scale)
    return output.reshape(n, heads, 1, value.shape[-1])


class GatheredPages(Layout):
    """Layout of the new tokens of each conversation. Each conversation gathers all of its pages."""

    def __init__(self, table: Tensor, positions: Tensor, window: int | None, dtype: torch.dtype) -> None:
        """Create the layout of a pass.

        Args:
            table: (n_row, n_page) int64, numbers of the pages of each conversation, in order. 0 for padding.
            positions: (n_row, n_query) int64, positions of the queries.
            window: number of positions that a query sees, counted back from its own. None for all earlier ones.
            dtype: the queries' dtype.
        """
        self._shape = table.shape
        self._pages = table.reshape(-1)
        # A captured pass reads this tensor again.
        self._keys = keys = _key_positions(table.shape[1], table.device)
        queries = positions[:, None, :, None]
        hidden = keys > queries
        if window is not None:
            hidden = hidden | (keys <= queries - window)
        zeros = torch.zeros(hidden.shape, dtype=dtype, device=table.device)
        self._mask = zeros.masked_fill_(hidden, torch.finfo(dtype).min)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        layer, (n_row, n_page) = layer_of(key), self._shape
        keys, values = (
            store.index_select(0, self._pages).reshape(n_row, n_page * BLOCK, *store.shape[2:]).transpose(1, 2)
            for store in (layer.keys, layer.values)
        )
        return attend_in_groups(query, keys, values, self._mask, scale)


@lru_cache(maxsize=64)
def _key_positions(n_page: int, device: torch.device) -> Tensor:
    """Return the position of each key in a conversation's pages, (n_page * BLOCK,) int64."""
    index, place = np.divmod(np.arange(n_page * BLOCK), BLOCK)
    first = np.where(place < HALF, index * HALF + place, NEVER)
    return to_device(device, np.where(index < 2, first, (index - 1) * BLOCK + place))[0]
