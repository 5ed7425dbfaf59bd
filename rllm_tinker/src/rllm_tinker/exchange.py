"""What the backend sends to the service and gets from it, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Datum:
    """One row as the service takes it: position i of `tokens` predicts `targets[i]`."""

    tokens: NDArray[np.int32]
    """(n,)"""
    targets: NDArray[np.int32]
    """(n,)"""
    inputs: Mapping[str, NDArray[np.float32]]
    """What the loss reads, by name, each (n,)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """What a forward (and backward) pass returns."""

    logprobs: list[NDArray[np.float32]]
    """Of each datum's targets, (n,)."""
    loss: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledSequence:
    """One sampled sequence."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Adam:
    """One step of the service's AdamW; a `grad_clip_norm` of 0 clips nothing."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A LoRA model that the service keeps; None where it does not say."""

    base_model: str
    lora_rank: int | None
    train_unembed: bool | None
    train_attn: bool | None
    train_mlp: bool | None
