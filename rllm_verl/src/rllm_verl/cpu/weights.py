"""New weights for a rollout server. They are sent in messages of limited size and written when all are complete."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.errors import BackendError

Bucket = dict[str, NDArray[np.float32]]
"""Weights by name, each with its shape in the model."""


class Buckets:
    """Collects weights until a message is full."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty. `max_bytes` limits a message, but a single weight may be larger."""
        self._max_bytes = max_bytes
        self._arrays: Bucket = {}
        self._bytes = 0

    def add(self, name: str, weight: Tensor) -> Bucket | None:
        """Store a float32 copy of a weight. If the message is full, return it so that it can be sent first."""
        # numpy has no bfloat16. A copy is needed because the trainer's memory may change before the message is sent.
        array = weight.detach().to("cpu", torch.float32, copy=True).numpy()
        full = self.rest() if self._arrays and self._bytes + array.nbytes > self._max_bytes else None
        self._arrays[name] = array
        self._bytes += array.nbytes
        return full

    def rest(self) -> Bucket:
        """Return the remaining weights, possibly none."""
        arrays, self._arrays, self._bytes = self._arrays, {}, 0
        return arrays


NAMED = 5
"""Maximum number of wrong names in an error message."""


class StagedWeights:
    """The incomplete new weights of one model."""

    def __init__(self, model: Any) -> None:
        self._targets: dict[str, Tensor] = model.state_dict()
        self._staged: dict[str, Tensor] = {}

    def add(self, bucket: Bucket) -> None:
        """Store a copy of some weights.

        Raises:
            BackendError: the model has no weight with this name or shape.
        """
        unknown = [name for name in bucket if name not in self._targets]
        if unknown:
            raise BackendError(
                "weights-mismatch", f"The rollout server's model has no weights {_shorten(unknown)}.", _SAME_MODEL
            )
        for name, values in bucket.items():
            shape = tuple(self._targets[name].shape)
            if values.shape != shape:
                raise BackendError(
                    "weights-mismatch",
                    f"Weight {name} has shape {values.shape}, but {shape} in the server.",
                    _SAME_MODEL,
                )
            # Copy them, because Ray's arrays are read-only views into memory that Ray reuses.
            self._staged[name] = torch.from_numpy(np.array(values))

    def check_complete(self) -> None:
        """Raise BackendError if a weight of the model is missing. For tied weights, one of them is enough."""
        given = {self._targets[name].data_ptr() for name in self._staged}
        missing = [name for name, target in self._targets.items() if target.numel() and target.data_ptr() not in given]
        if missing:
            raise BackendError(
                "weights-mismatch",
                f"The update of the rollout server lacks weights {_shorten(missing)}.",
                _SAME_MODEL,
            )

    @torch.no_grad()
    def write(self) -> None:
        """Copy the staged weights into the model, in the model's own type."""
        for name, values in self._staged.items():
            self._targets[name].copy_(values)


_SAME_MODEL = "Trainer and rollout must load the same model: set actor_rollout_ref.model.path for both."


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(sorted(names)[:NAMED]) + more
