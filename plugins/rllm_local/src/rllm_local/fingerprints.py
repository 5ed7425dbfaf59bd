"""How a model is told from others, whether or not there is an adapter on it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def fingerprint(model: Any, dtype: torch.dtype | None = None) -> str:
    """SHA-256, hexadecimal, of all weights of a `torch.nn.Module` with their names: of 1 GB in about a second.

    The weights are taken as they are or rounded to `dtype`; a LoRA adapter is left out.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not is_adapters(name):
            digest.update(plain_name(name).encode())
            digest.update(parameter.detach().to(dtype or parameter.dtype).flatten().view(torch.uint8).cpu().numpy())
    return digest.hexdigest()


def is_adapters(name: str) -> bool:
    """Whether a parameter of this name is the adapter's."""
    return ".lora_A." in name or ".lora_B." in name


def plain_name(name: str) -> str:
    """What a tensor of the base model is called where there is no adapter."""
    return name.replace(".base_layer.", ".")
