"""What an update did to every trained token, as backends that can tell report it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTrace:
    """The trained tokens of one update, each once per epoch. Every column is (n,), in any order.

    A part of the coefficient is a derivative of the loss that the optimiser step descends, aggregation weights included
    and gradient clipping left out.

    Raises:
        ValueError: a column is of another length or dtype.
    """

    row: NDArray[np.int32]
    """Row of the token in the batch."""
    position: NDArray[np.int32]
    """Where the token is in its row, from 0."""
    epoch: NDArray[np.int32]
    """Pass over the batch, from 0."""
    logprob: NDArray[np.float32]
    """Log-prob in nats, under the weights before the optimiser step of this epoch that the token is in."""
    entropy: NDArray[np.float32]
    """Entropy in nats of the distribution that the token is from, under the same weights; NaN where not computed."""
    policy_part: NDArray[np.float32]
    """Derivative of the policy loss by `logprob`."""
    kl_part: NDArray[np.float32]
    """Derivative of the KL term by `logprob`; 0 without one."""
    entropy_part: NDArray[np.float32]
    """Derivative of the entropy bonus by `entropy`; 0 without one."""

    def __post_init__(self) -> None:
        n = self.row.size
        for name, column in vars(self).items():
            dtype = np.dtype(np.int32 if name in ("row", "position", "epoch") else np.float32)
            if (column.shape, column.dtype) != ((n,), dtype):
                found = f"{column.dtype} of shape {column.shape}"
                raise ValueError(f"column {name!r} of a token trace is {found}; expected {dtype} of shape ({n},)")
