"""Gradient checkpointing: a backward pass computes the activations of each layer again instead of keeping them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rllm_core.errors import ConfigError


@contextmanager
def recomputing(model: Any) -> Iterator[None]:
    """Within, forward passes of a `transformers` model keep the input of each layer alone, (n_row, width, n_hidden).

    The model stays in evaluation mode: dropout stays off, and only its layers hear that they train. Outside they must
    not, or they would sample without a cache.

    Raises:
        ConfigError: the model has no layers that can be computed again.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"training.gradient_checkpointing is true, and {type(model).__name__} has no layers that can be computed "
            "again.",
            "Leave it out; lower training.max_tokens_per_microbatch to save memory.",
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.gradient_checkpointing_disable()
