"""A model's weights by name: the trained weights, copies, memory shared with a second process, and fingerprints."""

from __future__ import annotations

import copy
import hashlib
import mmap
import os
import tempfile
from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from rllm_backend_kit.weight_comparison import digest

ALIGNED = 64
"""Alignment in bytes of each tensor's start in shared memory."""


def trained_weights(model: Any) -> dict[str, Tensor]:
    """Return a model's trained parameters (not copies), by name, in the model's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def copy_weights(trained: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copy tensors into other tensors with the same names, from and to any device."""
    for name, tensor in trained.items():
        into[name].copy_(tensor)


def copy_model(model: Any, trained: Collection[str]) -> Any:
    """Return a copy of a model for sampling. The copy shares the untrained parameters.

    Args:
        model: `transformers.PreTrainedModel`.
        trained: names of the trained parameters.
    """
    frozen = {id(parameter): parameter for name, parameter in model.named_parameters() if name not in trained}
    return copy.deepcopy(model, memo=frozen).requires_grad_(False)


def shared_memory() -> int:
    """Return the descriptor of an empty file without a name, in memory if the system supports that.

    POSIX shared memory is not used, because it remains after a process is killed, and containers have only 64 MiB.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rllm-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def shared_weights(descriptor: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return CPU tensors with the names, shapes and types of `like`, in a file that a second process also maps."""
    offsets, size = {}, 0
    for name, tensor in like.items():
        offsets[name] = size
        size += -(-tensor.nbytes // ALIGNED) * ALIGNED
    if os.fstat(descriptor).st_size < size:
        os.ftruncate(descriptor, size)
    memory = mmap.mmap(descriptor, size)
    return {
        name: torch.frombuffer(memory, dtype=like[name].dtype, count=prod(like[name].shape), offset=offset).view(
            like[name].shape
        )
        for name, offset in offsets.items()
    }


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


def digest_parameters(model: Any) -> dict[str, str]:
    """Return the digest of each parameter by name, or only of the adapter's parameters if the model has an adapter. A
    tied weight has several names."""
    named = dict(model.named_parameters(remove_duplicate=False))
    named = {name: parameter for name, parameter in named.items() if is_adapters(name)} or named
    digests = {parameter: digest(parameter) for parameter in set(named.values())}
    return {name: digests[parameter] for name, parameter in named.items()}


def is_adapters(name: str) -> bool:
    """Return True if a parameter with this name belongs to the adapter."""
    return ".lora_A." in name or ".lora_B." in name


def plain_name(name: str) -> str:
    """Return the name that a tensor of the base model has without an adapter."""
    return name.replace(".base_layer.", ".")
