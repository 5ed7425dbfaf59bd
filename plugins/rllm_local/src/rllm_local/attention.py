"""Attention: masks for sliding-window layers, and sampling over cache slots without a copy of keys and values.

transformers repeats keys and values for the query heads that share them. Here the query heads that share a key head
become queries of one attention. Measured with a model of 135 million parameters and 64 conversations of 50 tokens on
one core, this reduces a step from 316 ms to 262 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

SLIDING = "sliding_attention"
FULL = "full_attention"


def layer_types(config: Any) -> set[str]:
    """Return the types of the layers. Models without `layer_types` have the same attention in all layers."""
    alike = SLIDING if getattr(config, "sliding_window", None) else FULL
    return set(getattr(config, "layer_types", None) or [alike])


def window_masks(config: Any, visible: Tensor, queries: Tensor, keys: Tensor) -> Tensor | dict[str, Tensor]:
    """Return the `attention_mask` of a forward pass, per type of layer if the model has several types.

    Args:
        config: text part of the model's configuration.
        visible: (n, 1, n_query, n_key) bool, True if a layer with full attention sees the key.
        queries: (n, n_query) positions in their row.
        keys: (n, n_key) or (1, n_key) positions in their row.
    """
    if SLIDING not in layer_types(config) or visible.shape[-1] <= config.sliding_window:
        return visible
    near = visible & (keys[:, None, None, :] > queries[:, None, :, None] - config.sliding_window)
    # Models without `layer_types` take one mask.
    return {FULL: visible, SLIDING: near} if getattr(config, "layer_types", None) else near


NAME = "rllm_local_slots"
_rows: ContextVar[Tensor | None] = ContextVar("rows", default=None)


@contextmanager
def over_slots(model: Any, rows: Tensor | None) -> Iterator[None]:
    """Make the model's forward passes attend over a `SlotCache` within this context.

    Args:
        model: a model that uses torch's scaled dot product attention outside this context.
        rows: (n_row,) int64, index of each row's slot among the slots that are read. None if they are the same.
    """
    before, token = model.config._attn_implementation, _rows.set(rows)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
        _rows.reset(token)


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **options: Any
) -> tuple[Tensor, None]:
    """Compute attention over slots. The layers of transformers call this function.

    Args:
        module: the layer's attention.
        query: (n_row, heads, n_query, size).
        key: (n_slot, key heads, length, size).
        value: like `key`, possibly with a different size.
        attention_mask: (n_slot, 1, n_query, length) bool.
        scaling: factor of the scores.
        options: other options that transformers passes.

    Returns:
        (n_row, n_query, heads, size of values), and no weights.
    """
    if query.shape[2] > 1:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
        return output, None
    n_row, heads, _, size = query.shape
    grouped, rows = query.reshape(n_row, key.shape[1], -1, size), _rows.get()
    if rows is not None:
        grouped = grouped.new_zeros((key.shape[0], *grouped.shape[1:])).index_copy_(0, rows, grouped)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    if rows is not None:
        output = output.index_select(0, rows)
    return output.reshape(n_row, 1, heads, value.shape[-1]), None


AttentionInterface.register(NAME, attend)
