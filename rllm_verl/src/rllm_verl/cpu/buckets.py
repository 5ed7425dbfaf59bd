"""Collects weights into messages of limited size."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arrays = dict[str, NDArray[np.float32]]


class Buckets:
    """Collects weights until a message is full."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty. `max_bytes` limits a message, but a single weight may be larger."""
        self._max_bytes = max_bytes
        self._arrays: Arrays = {}
        self._bytes = 0

    def add(self, name: str, weight: Tensor) -> Arrays | None:
        """Store a float32 copy of a weight. If the message is full, return it so that it can be sent first."""
        # numpy has no bfloat16. A copy is needed because the trainer's memory may change before the message is sent.
        array = weight.detach().to("cpu", torch.float32, copy=True).numpy()
        full = self.rest() if self._arrays and self._bytes + array.nbytes > self._max_bytes else None
        self._arrays[name] = array
        self._bytes += array.nbytes
        return full

    def rest(self) -> Arrays:
        """Return the remaining weights, possibly none."""
        arrays, self._arrays, self._bytes = self._arrays, {}, 0
        return arrays
