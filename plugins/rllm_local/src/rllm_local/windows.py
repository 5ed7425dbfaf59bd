"""Attention masks of models whose layers may see a window of the latest tokens only."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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
