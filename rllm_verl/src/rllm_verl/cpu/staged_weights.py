"""New weights on their way into a model: collected first, then written all at once, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.errors import BackendError

NAMED = 5
"""How many wrong names an error tells."""

Bucket = Mapping[str, NDArray[np.float32]]
"""Weights by name, each of the shape it has in the model."""


class StagedWeights:
    """Weights for one model, until they are complete."""

    def __init__(self, model: Any) -> None:
        self._targets: dict[str, Tensor] = model.state_dict()
        self._staged: dict[str, Tensor] = {}

    def add(self, bucket: Bucket) -> None:
        """Keep a copy of some weights.

        Raises:
            BackendError: the model has no such weight, or one of another shape.
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
                    f"Weight {name} has shape {values.shape}, and {wanted} in the server.",
                    _SAME_MODEL,
                )
            # A copy: Ray's arrays are read-only views into memory that it wants back.
            self._staged[name] = torch.from_numpy(np.array(values))

    def check_complete(self) -> None:
        """Raise BackendError when a weight of the model has not been given. Of tied weights, one is enough."""
        given = {self._targets[name].data_ptr() for name in self._staged}
        missing = [name for name, target in self._targets.items() if target.numel() and target.data_ptr() not in given]
        if missing:
            raise BackendError(
                "weights-mismatch", f"The update of the rollout server lacks weights {_some(missing)}.", _SAME_MODEL
            )

    @torch.no_grad()
    def write(self) -> None:
        """Copy what was given into the model, in the model's own type."""
        for name, values in self._staged.items():
            self._targets[name].copy_(values)


_SAME_MODEL = "Trainer and rollout must load the same model: set actor_rollout_ref.model.path for both."


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(sorted(names)[:NAMED]) + more
