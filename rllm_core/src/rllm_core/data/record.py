"""The types of a run's record: the outcome of each trajectory, and statistics of each trained token.

A trajectory is identified by its `Trajectory.uid`. The core itself writes no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

OutcomeName = Literal["trained", "waiting", "dropped", "masked"]
_OUTCOME_NAMES = get_args(OutcomeName)
WHOLE_NUMBERS = frozenset({"row", "position", "epoch", "optimizer_step"})
"""Columns of a `TokenTrace` with dtype int32. All other columns are float32."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a trajectory in one step. It has exactly one outcome per step in which it is generated or waits.

    Raises:
        ValueError: `outcome` is not a valid name.
    """

    step: int
    """Training step, from 0."""
    trajectory: str
    """The trajectory's uid."""
    outcome: OutcomeName
    rule: str
    """The rule that decided, such as ``reject/all_solved`` or ``compact_filter/timeout``. Empty if the trajectory is
    trained on."""
    numbers: Mapping[str, float]
    """The values that the rule used, by name. Empty if it used none."""
    group: str | None
    """Id of its group. None if it was masked before groups were formed."""
    peers: tuple[str, ...]
    """Uids of the other trajectories of the group."""

    def __post_init__(self) -> None:
        if self.outcome not in _OUTCOME_NAMES:
            raise ValueError(f"outcome {self.outcome!r}; expected one of {', '.join(_OUTCOME_NAMES)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenTrace:
    """The trained tokens of one update, once per epoch. Every column is (n,), in any order.

    The columns ending in ``_part`` are derivatives of the loss that the optimizer step descends. They include
    aggregation weights and exclude gradient clipping. NaN if the backend does not have the value.

    Raises:
        ValueError: a column has a different length or dtype.
    """

    row: NDArray[np.int32]
    """Row of the token in the batch."""
    position: NDArray[np.int32]
    """Position of the token in its row, from 0."""
    epoch: NDArray[np.int32]
    """Pass over the batch, from 0."""
    optimizer_step: NDArray[np.int32]
    """Optimizer step of the update that contains the token, from 0 over all epochs."""
    logprob: NDArray[np.float32]
    """Log-prob in nats, under the weights before the token's optimizer step of this epoch."""
    entropy: NDArray[np.float32]
    """Entropy in nats of the token's distribution, under the same weights. NaN if not computed."""
    weight: NDArray[np.float32]
    """Weight of the token's loss. The loss of the optimizer step is the sum of weight times token loss."""
    clipped: NDArray[np.float32]
    """1 if the policy loss clips the token, 0 if it does not. NaN if the loss does not report it."""
    policy_part: NDArray[np.float32]
    """Derivative of the policy loss with respect to `logprob`."""
    kl_part: NDArray[np.float32]
    """Derivative of the KL term with respect to `logprob`. 0 without a KL term."""
    entropy_part: NDArray[np.float32]
    """Derivative of the entropy bonus with respect to `entropy`. 0 without a bonus. If `entropy` is NaN, the log-prob
    estimates it, and the derivative is with respect to `logprob`."""

    def __post_init__(self) -> None:
        n = self.row.size
        for name, column in vars(self).items():
            dtype = np.dtype(np.int32 if name in WHOLE_NUMBERS else np.float32)
            if (column.shape, column.dtype) != ((n,), dtype):
                found = f"{column.dtype} of shape {column.shape}"
                raise ValueError(f"column {name!r} of a token trace is {found}; expected {dtype} of shape ({n},)")


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """One optimizer step of an update. A value is None if the backend does not have it."""

    epoch: int
    """Pass over the batch, from 0."""
    number: int
    """Number of the optimizer step in the update, from 0 over all epochs."""
    loss: float | None = None
    """The loss that the step descends: the sum of policy, KL and entropy loss. It does not include a critic's loss."""
    policy_loss: float | None = None
    kl_loss: float | None = None
    """Weight of the KL term times the divergence. 0 without a KL term."""
    entropy_loss: float | None = None
    """Negative entropy bonus, so less than 0. 0 without a bonus."""
    grad_norm: float | None = None
    """Norm of the policy's gradient before clipping."""
    clip_factor: float | None = None
    """Factor by which gradient clipping multiplies that gradient, at most 1."""
    learning_rate: float | None = None
    loss_seed: int | None = None
    """The `LossInput.seed` of the step."""
