"""The weights that a run trains, by the names of a model's parameters; in this process or shared with another."""

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
"""Bytes: where a tensor of shared memory begins is a multiple of it."""


def trained_weights(model: Any) -> dict[str, Tensor]:
    """What is trained of a model, by name, in its order: the parameters themselves."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def copy_weights(trained: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    """Copy tensors into others of the same names, from and to any device."""
    for name, tensor in trained.items():
        into[name].copy_(tensor)


def copied(model: Any, trained: Collection[str]) -> Any:
    """A copy of a model to sample from. What is not trained is shared.

    Args:
        model: `transformers.PreTrainedModel`.
        trained: names of the parameters that are.
    """
    frozen = {id(parameter): parameter for name, parameter in model.named_parameters() if name not in trained}
    made = copy.deepcopy(model, memo=frozen)
    return made.requires_grad_(False)


def shared_memory() -> int:
    """The descriptor of a file of no name, empty, in memory where the system has such files.

    Not POSIX shared memory: what is left of that outlives a process that is killed, and a container has 64 MiB of it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rllm-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def shared_weights(descriptor: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, of the names, shapes and types of `like`, in a file that another process maps too."""
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
