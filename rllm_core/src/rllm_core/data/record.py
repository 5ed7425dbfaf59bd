"""The types of a run's record: what became of trajectories, and what trained tokens did.

A trajectory is named by its `Trajectory.uid`. Nothing in the core writes a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

OutcomeName = Literal["trained", "waiting", "dropped", "masked"]
_FATE_NAMES = get_args(OutcomeName)
WHOLE_NUMBERS = frozenset({"row", "position", "epoch", "optimizer_step"})
"""Columns of a `TokenTrace` that are int32; the others are float32."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a trajectory in one step: it has exactly one fate per step in which it is played or waits.

    Raises:
        ValueError: `outcome` is none that there is.
    """

    step: int
    """Training step, from 0."""
    trajectory: str
    """Its uid."""
    outcome: OutcomeName
    rule: str
    """What decided, such as ``reject/all_solved`` or ``compact_filter/timeout``; empty for what is trained on."""
    numbers: Mapping[str, float]
    """What the rule looked at, by name; empty where it looked at none."""
    group: str | None
    """Id of its group; None: it was masked before there were groups."""
    peers: tuple[str, ...]
    """Uids of the other trajectories of the group."""

    def __post_init__(self) -> None:
        if self.outcome not in _FATE_NAMES:
            raise ValueError(f"fate {self.outcome!r}; there are {', '.join(_FATE_NAMES)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTrace:
    """The trained tokens of one update, each once per epoch. Every column is (n,), in any order.

    A part of the coefficient is a derivative of the loss that the optimiser step descends, aggregation weights included
    and gradient clipping left out. NaN: the backend does not know the figure.

    Raises:
        ValueError: a column is of another length or dtype.
    """

    row: NDArray[np.int32]
    """Row of the token in the batch."""
    position: NDArray[np.int32]
    """Where the token is in its row, from 0."""
    epoch: NDArray[np.int32]
    """Pass over the batch, from 0."""
    optimizer_step: NDArray[np.int32]
    """Optimiser step of the update that the token is in, from 0 over all epochs."""
    logprob: NDArray[np.float32]
    """Log-prob in nats, under the weights before the optimiser step of this epoch that the token is in."""
    entropy: NDArray[np.float32]
    """Entropy in nats of the distribution that the token is from, under the same weights; NaN where not computed."""
    weight: NDArray[np.float32]
    """What the token's loss counts in the loss of the optimiser step: that is the sum of weight times token loss."""
    clipped: NDArray[np.float32]
    """1 where the policy loss clips the token, 0 where it does not; NaN where the loss does not say."""
    policy_part: NDArray[np.float32]
    """Derivative of the policy loss by `logprob`."""
    kl_part: NDArray[np.float32]
    """Derivative of the KL term by `logprob`; 0 without one."""
    entropy_part: NDArray[np.float32]
    """Derivative of the entropy bonus by `entropy`; 0 without one. Where `entropy` is NaN, the log-prob estimates it
    and the derivative is by `logprob`."""

    def __post_init__(self) -> None:
        n = self.row.size
        for name, column in vars(self).items():
            dtype = np.dtype(np.int32 if name in WHOLE_NUMBERS else np.float32)
            if (column.shape, column.dtype) != ((n,), dtype):
                found = f"{column.dtype} of shape {column.shape}"
                raise ValueError(f"column {name!r} of a token trace is {found}; expected {dtype} of shape ({n},)")


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """One optimiser step of an update. A figure that a backend does not know is None."""

    epoch: int
    """Pass over the batch, from 0."""
    number: int
    """Counts the optimiser steps of the update, from 0 over all epochs."""
    loss: float | None = None
    """What it descends: the sum of the three parts. A critic's loss is none of them."""
    policy_loss: float | None = None
    kl_loss: float | None = None
    """Weight of the KL term times the divergence; 0 without one."""
    entropy_loss: float | None = None
    """Less than 0 where an entropy bonus is paid; 0 without one."""
    grad_norm: float | None = None
    """Norm of the policy's gradient before it is clipped."""
    clip_factor: float | None = None
    """What gradient clipping multiplies that gradient by: at most 1."""
    learning_rate: float | None = None
    loss_seed: int | None = None
    """`LossInput.seed` of the step."""
