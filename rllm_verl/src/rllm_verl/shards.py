"""Shards: one training process's part of every weight and of the optimizer, as safetensors, to resume exactly.

verl's own checkpoints contain the same data as pickles, which can run code when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from rllm_core.errors import CheckpointError

WEIGHT, OPTIMIZER, RANDOM = "weight", "optimizer", "random"


def save_shard(
    file: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, random: dict[str, Tensor]
) -> None:
    """Write one rank's shard.

    Args:
        file: a new file in an existing directory.
        module: a module that FSDP2 has sharded. Untrained weights (below LoRA adapters) come from the base model and
            are not written.
        optimizer: the optimizer of the module's weights.
        random: states of torch's generators by device.
    """
    tensors = {f"{WEIGHT}/{name}": local_part(weight) for name, weight in trained_weights(module)}
    for name, weight in trained_weights(module):
        for key, value in optimizer.state.get(weight, {}).items():
            tensors[f"{OPTIMIZER}/{name}/{key}"] = local_part(value)
    tensors |= {f"{RANDOM}/{device}": state for device, state in random.items()}
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, file)


@torch.no_grad()
def load_shard(file: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Restore one rank's shard, bit for bit, and return the states of torch's generators.

    Raises:
        CheckpointError: the shard belongs to a different model.
    """
    tensors = load_file(file)
    trained = dict(trained_weights(module))
    saved = {name.removeprefix(f"{WEIGHT}/") for name in tensors if name.startswith(f"{WEIGHT}/")}
    wrong = sorted(saved ^ trained.keys()) or [
        name for name, weight in trained.items() if tensors[f"{WEIGHT}/{name}"].shape != local_part(weight).shape
    ]
    if wrong:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{file} contains the weights of a different model: {wrong[0]} differs.",
            "Resume with the same model with which you started the run.",
        )
    optimizer.state.clear()
    for name, weight in trained.items():
        local_part(weight).copy_(tensors[f"{WEIGHT}/{name}"])
        start = f"{OPTIMIZER}/{name}/"
        state = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        if state:
            optimizer.state[weight] = {key: _like(weight, value) for key, value in state.items()}
    return {name.removeprefix(f"{RANDOM}/"): state for name, state in tensors.items() if name.startswith(f"{RANDOM}/")}


def trained_weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in module.named_parameters() if weight.requires_grad)


def local_part(value: Any) -> Tensor:
    """Return this rank's part of a tensor. Values such as step counters are whole on every rank."""
    return value.to_local() if isinstance(value, DTensor) else torch.as_tensor(value)


def _like(weight: torch.nn.Parameter, value: Tensor) -> Tensor:
    """Return a restored entry of the optimizer's state. Moments are sharded like the weight, step counters are not."""
    if value.shape != local_part(weight).shape or value.ndim == 0:
        return value
    moment = torch.zeros_like(weight, dtype=value.dtype)
    local_part(moment).copy_(value)
    return moment
