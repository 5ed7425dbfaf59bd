"""The service's `dro`, whose quadratic term counts every position of a row, sampled or not.

It is (logprob - old logprob)^2, so a prompt position with an old log-prob of 0 would pull the prompt's own log-prob up.
With the log-prob that the weights of the moment give it, value and gradient there are 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rllm_tinker.client import Asked, Trainer
from rllm_tinker.datums import Rows
from rllm_tinker.exchange import Gradient
from rllm_tinker.native import NativeLoss


def uniform_weight(rows: Rows, weights: NDArray[np.float32]) -> float | None:
    """The weight of every sampled token of the rows; None when they differ, which `dro` cannot express."""
    found = weights[rows.sampled]
    return float(found[0]) if len(found) and np.all(found == found[0]) else None


async def submit_dro(
    trainer: Trainer, rows: Rows, loss: NativeLoss, weight: float, columns: Mapping[str, NDArray[np.float32]]
) -> Asked[Gradient]:
    """Ask for the gradient of `dro`, once a forward pass has given the prompts' log-probs; await again for the result.

    The loss is A logprob - beta / 2 (logprob - old)^2 per token; `columns` hold weight * A already, and a weight on the
    quadratic term is one on beta.
    """
    forward = await trainer.forward(rows.datums(weights=np.zeros_like(columns["logprobs"])))
    old_logprobs = np.where(rows.batch.loss_mask, columns["logprobs"], rows.column(forward.logprobs))
    config = {"beta": loss.config["beta"] * weight}
    return trainer.forward_backward(rows.datums(**{**columns, "logprobs": old_logprobs}), loss.name, config)
