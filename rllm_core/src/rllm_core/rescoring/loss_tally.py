"""What one loss does to the tokens of one role under one setup, summed over steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(kw_only=True)
class LossTally:
    """Gradients are d (sum of token losses) / d log-prob, before aggregation."""

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
        """What the role adds to the loss of a step, aggregated by `rllm.algorithm.loss_agg_mode`; mean over steps."""
        return self.loss_sum / self.steps

    @property
    def mean_gradient(self) -> float:
        """Mean absolute value over tokens."""
        return self.gradient_sum / self.tokens


LossTallies = dict[tuple[str, str, str], LossTally]
"""By role, label of the setup and label of the loss."""
