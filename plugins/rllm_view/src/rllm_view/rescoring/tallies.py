"""Counts over the sampled tokens of all steps: signs of their advantages, and what losses make of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch


@dataclass(kw_only=True, eq=False)
class TokenTally:
    """Sampled tokens of one role over all steps, and how many change their sign against the first setup."""

    n_setup: int
    tokens: int = 0
    zero: NDArray[np.int64] = field(init=False)
    """(n_setup,) tokens whose advantage is 0."""
    changed: NDArray[np.int64] = field(init=False)
    """(n_setup,)"""

    def __post_init__(self) -> None:
        self.zero, self.changed = np.zeros((2, self.n_setup), np.int64)

    def add(self, columns: NDArray[np.float32]) -> None:
        """Count (n_setup, n_sampled) advantages."""
        signs = np.sign(columns)
        self.tokens += columns.shape[1]
        self.zero += (signs == 0).sum(axis=1)
        self.changed += (signs != signs[0]).sum(axis=1)


@dataclass(kw_only=True)
class LossTally:
    """Effect of one loss on one role's tokens under one setup: d (sum of token losses) / d log-prob of a token."""

    steps: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    gradient_sum: float = 0.0
    zero: int = 0
    """Tokens without a gradient."""
    silenced: int = 0
    """Tokens without a gradient though their advantage is not 0: clipped or masked."""

    def add(self, loss: float, gradients: NDArray[np.float64], advantages: NDArray[np.float32]) -> None:
        """Add one step: its aggregated loss, and (n_sampled,) gradients and advantages."""
        still = gradients == 0
        self.steps += 1
        self.tokens += len(gradients)
        self.loss_sum += loss
        self.gradient_sum += float(np.abs(gradients).sum())
        self.zero += int(still.sum())
        self.silenced += int((still & (advantages != 0)).sum())

    @property
    def loss(self) -> float:
        """Role's part of a step's loss, aggregated with `rllm.algorithm.loss_agg_mode`. Mean over steps."""
        return self.loss_sum / self.steps

    @property
    def mean_gradient(self) -> float:
        """Mean absolute value over tokens."""
        return self.gradient_sum / self.tokens


LossTallies = dict[tuple[str, str, str], LossTally]
"""By role, label of the setup and label of the loss."""


def tally_tokens(batch: TokenBatch, columns: NDArray[np.float32], tallies: dict[str, TokenTally]) -> None:
    """Count the sampled tokens of every role of a batch."""
    roles = np.repeat(batch.role, batch.row_lengths)
    for index, role in enumerate(batch.roles):
        tally = tallies.setdefault(role, TokenTally(n_setup=len(columns)))
        tally.add(columns[:, batch.loss_mask & (roles == index)])
