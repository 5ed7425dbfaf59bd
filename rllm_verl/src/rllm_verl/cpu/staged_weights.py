"""New weights for a model. They are collected first, and written only when all are complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.errors import BackendError

NAMED = 5
"""Maximum number of wrong names in an error message."""

Bucket = Mapping[str, NDArray[np.float32]]
"""Weights by name, each with its shape in the model."""


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
                "weights-mismatch", f"The rollout server's model has no weights {_some(unknown)}.", _SAME_MODEL
            )
        for name, values in bucket.items():
            wanted = tuple(self._targets[name].shape)
            if values.shape != wanted:
                raise BackendError(
                    "weights-mismatch",
                    f"Weight {name} has shape {values.shape}, but {wanted} in the server.",
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
                "weights-mismatch", f"The update of the rollout server lacks weights {_some(missing)}.", _SAME_MODEL
            )

    @torch.no_grad()
    def write(self) -> None:
        """Copy the staged weights into the model, in the model's own type."""
        for name, values in self._staged.items():
            self._targets[name].copy_(values)


_SAME_MODEL = "Trainer and rollout must load the same model: set actor_rollout_ref.model.path for both."


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(sorted(names)[:NAMED]) + more
