"""Plain data types for the backend's requests to the service and for its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Datum:
    """One row in the service's format: position i of `tokens` predicts `targets[i]`."""

    tokens: NDArray[np.int32]
    """Input token ids, (n,)."""
    targets: NDArray[np.int32]
    """Target token ids, (n,)."""
    inputs: Mapping[str, NDArray[np.float32]]
    """Inputs of the loss by name, each (n,)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """The result of a forward pass, or of a forward and backward pass."""

    logprobs: list[NDArray[np.float32]]
    """Log-probs of each datum's targets, (n,)."""
    loss: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledSequence:
    """One sampled sequence."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Adam:
    """The parameters of one AdamW step of the service. A `grad_clip_norm` of 0 disables clipping."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A LoRA model that the service stores. A field is None if the service does not report it."""

    base_model: str
    lora_rank: int | None
    train_unembed: bool | None
    train_attn: bool | None
    train_mlp: bool | None
