"""Gradient checkpointing: a backward pass computes the activations of each layer again instead of keeping them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from rllm_core.errors import ConfigError


@contextmanager
def recomputing(model: Any) -> Iterator[None]:
    """Within, forward passes of a `transformers` model keep the input of each layer alone, (n_row, width, n_hidden).

    `gradient_checkpointing_enable` acts on layers that train alone, and some of these draw dropout then; here the model
    stays in evaluation mode.

    Raises:
        ConfigError: the model has no layers that can be computed again.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            "no-gradient-checkpointing",
            f"training.gradient_checkpointing is true, and {type(model).__name__} has no layers that can be computed "
            "again.",
            "Leave it out; lower training.max_tokens_per_microbatch to save memory.",
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
