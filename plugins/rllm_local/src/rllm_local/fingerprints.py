"""Fingerprints of models, independent of an adapter on them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def fingerprint(model: Any, dtype: torch.dtype | None = None) -> str:
    """Return a hexadecimal SHA-256 of all weights of a `torch.nn.Module` with their names.

    1 GB takes about a second. The weights are rounded to `dtype` if it is not None. A LoRA adapter is not included.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not is_adapters(name):
            digest.update(plain_name(name).encode())
            digest.update(parameter.detach().to(dtype or parameter.dtype).flatten().view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


def is_adapters(name: str) -> bool:
    """Return True if a parameter with this name belongs to the adapter."""
    return ".lora_A." in name or ".lora_B." in name


def plain_name(name: str) -> str:
    """Return the name that a tensor of the base model has without an adapter."""
    return name.replace(".base_layer.", ".")
