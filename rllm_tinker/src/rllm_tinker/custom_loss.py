"""Losses that are computed here: any of ours, with KL divergence, entropy bonus and rollout correction.

The service gives the log-probs, takes back their gradient, and does the rest (`forward_backward_custom`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.loss import RoleLosses, loss_terms, sampled_entropy, token_objective
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_tinker.datums import Rows


def custom_loss(
    rows: Rows, weights: NDArray[np.float32], plan: UpdatePlan, role_losses: RoleLosses, seed: int
) -> Callable[[Sequence[Tensor]], Tensor]:
    """The loss of rows as a function of the log-probs of their targets, a tensor (n_target,) for each row.

    Args:
        rows: whole rows of a batch with `advantages` and `old_logprobs`.
        weights: (n_token of the batch,) weight of each sampled token.
        plan: losses and terms.
        role_losses: computes the policy losses.
        seed: for losses that draw.
    """
    shares = torch.from_numpy(weights[rows.sampled])
    masks = [torch.from_numpy(rows.batch.loss_mask[start:end]) for start, end in rows.spans]

    def loss(logprobs: Sequence[Tensor]) -> Tensor:
        sampled = torch.cat([row[mask] for row, mask in zip(logprobs, masks, strict=True)])
        inputs = loss_input(rows, sampled, seed)
        policy_losses = role_losses(rows.batch, inputs, plan)
        objective = token_objective(policy_losses, loss_terms(inputs, plan), sampled_entropy(inputs), plan)
        return (objective * shares).sum()

    return loss


def loss_input(rows: Rows, logprobs: Tensor, seed: int) -> LossInput:
    """What losses are given of the sampled tokens of rows, whose log-probs are `logprobs`, (n_sampled,)."""
    lengths = [int(rows.batch.loss_mask[start:end].sum()) for start, end in rows.spans]
    row_ids = torch.from_numpy(np.repeat(np.array(rows.rows, np.int64), lengths))
    return LossInput.from_batch(rows.batch, rows.sampled, logprobs, row_ids, seed)
