"""Faults of weight syncs, applied to the trained weights of a worker: the check of weights compares their log-probs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rllm_core.contracts.weight_comparison import KnownFault
from rllm_verl.shards import local_part, trained_weights

ROUNDED = {KnownFault.BFLOAT16: torch.bfloat16, KnownFault.FLOAT16: torch.float16}


@contextmanager
def with_fault(module: Any, fault: KnownFault) -> Iterator[None]:
    """Change a module's weights to the weights of a sampler with this fault, and restore them bit for bit.

    Args:
        module: a module that FSDP has sharded. Each rank changes its own shard.
        fault: any fault except `KnownFault.NO_ADAPTER`, for which verl has an option.
    """
    if fault is KnownFault.ADAPTER_TWICE:
        factor = 2.0
        layers = [each for each in module.modules() if hasattr(each, "lora_A") and isinstance(each.scaling, dict)]
        exact = [dict(layer.scaling) for layer in layers]
        for layer in layers:
            layer.scaling.update({name: factor * scale for name, scale in layer.scaling.items()})
        try:
            yield
        finally:
            for layer, scaling in zip(layers, exact, strict=True):
                layer.scaling.update(scaling)
        return
    weights = [local_part(weight).data for _, weight in trained_weights(module)]
    copies = [weight.clone() for weight in weights]
    for weight in weights:
        weight.copy_(weight.to(ROUNDED[fault]))
    try:
        yield
    finally:
        for weight, copy in zip(weights, copies, strict=True):
            weight.copy_(copy)
