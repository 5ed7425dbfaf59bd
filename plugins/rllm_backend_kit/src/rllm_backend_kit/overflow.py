"""The error about a gradient that is not finite, with advantages or returns that are too large for float32."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError

LARGE = 1e12
"""Float32 squares are finite up to 1.8e19. Advantages of this size or more can make the gradient norm exceed that."""


def gradient_error(
    batch: TokenBatch, step: int, advice: str, column: Literal["advantages", "returns"] = "advantages"
) -> BackendError:
    """Make the error about a gradient of a training step that is not finite.

    Args:
        batch: the batch of the step.
        step: its number.
        advice: the hint if no value of the column is too large.
        column: the values that scale the loss.
    """
    cause = overflow_cause(batch, column)
    if cause is None:
        return BackendError(
            "gradient-not-finite",
            f"A gradient of step {step} is not finite; the run ends before it reaches the weights.",
            f"{advice} Then continue from the newest checkpoint with --resume.",
        )
    return BackendError(
        "gradient-not-finite",
        f"A gradient of step {step} is not finite: {cause}.",
        "Scale the rewards down, for example to numbers from -1 to 1, or choose an estimator that does: "
        "rllm.algorithm.adv_estimator=grpo.",
    )


def overflow_cause(batch: TokenBatch, column: Literal["advantages", "returns"] = "advantages") -> str | None:
    """Describe the largest value of a column, and the reward that it comes from.

    Returns:
        None if no value is large enough to overflow a gradient.
    """
    values = getattr(batch, column)
    if values is None or not len(values):
        return None
    sizes = np.where(batch.loss_mask, np.nan_to_num(np.abs(values), nan=0.0), 0.0)
    token = int(sizes.argmax())
    if sizes[token] < LARGE:
        return None
    row = int(np.searchsorted(batch.row_offsets, token, side="right")) - 1
    group = batch.groups[batch.group[row]]
    before = sum(len(each.trajectories) for each in batch.groups[: batch.group[row]])
    place = int(batch.trajectory[row]) - before
    reward = group.trajectories[place].reward
    return (
        f"{column} are too large for float32. The largest is {values[token]:.3g}, from the reward "
        f"{reward if reward is None else format(reward, '.3g')} of trajectory {place} in group {group.group_id!r}"
    )
