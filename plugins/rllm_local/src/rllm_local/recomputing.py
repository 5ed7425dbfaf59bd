"""Gradient checkpointing: the backward pass recomputes each layer's activations, so they need not be stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from rllm_core.errors import ConfigError


@contextmanager
def recomputing(model: Any) -> Iterator[None]:
    """Make forward passes of a `transformers` model store only each layer's input, (n_row, width, n_hidden).

    This context manager replaces `gradient_checkpointing_enable`, which works only in training mode. In that mode some
    layers apply dropout. Here the model stays in evaluation mode.

    Raises:
        ConfigError: the model has no layers that support recomputation.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            "no-gradient-checkpointing",
            f"training.gradient_checkpointing is true, but {type(model).__name__} has no layers that support it.",
            "Remove the key. To save memory, lower training.max_tokens_per_microbatch.",
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
