"""A run's trained weights by parameter name, in this process or shared with a second process."""

from __future__ import annotations

import copy
import mmap
import os
import tempfile
from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

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


def copied(model: Any, trained: Collection[str]) -> Any:
    """Return a copy of a model for sampling. The copy shares the untrained parameters.

    Args:
        model: `transformers.PreTrainedModel`.
        trained: names of the trained parameters.
    """
    frozen = {id(parameter): parameter for name, parameter in model.named_parameters() if name not in trained}
    made = copy.deepcopy(model, memo=frozen)
    return made.requires_grad_(False)


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
