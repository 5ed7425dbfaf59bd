"""The critic: a linear head on the policy's last hidden state, which estimates the reward still to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_backend_kit.loss import value_loss
from rllm_core.data.batch import TokenBatch
from rllm_local.logprobs import Outputs
from rllm_local.rows import MicroBatch
from rllm_local.settings import CriticSection


class Critic(torch.nn.Module):
    """One value for each sampled token, of the state it was sampled in: (hidden state · weight) / width + bias.

    Weight and bias start at 0, so the first values are 0. Divided by the width, one learning rate suits models of all
    sizes: an optimiser step of AdamW moves a value by about that much.

    The value loss goes on into the model. Measured on the game `guess`, three seeds: reward after 80 steps is 0.67
    with it, 0.55 without, and 0.62 without but with a hidden layer in the head.
    """

    def __init__(self, model: Any, settings: CriticSection) -> None:
        super().__init__()
        self.settings = settings
        self.width = model.get_output_embeddings().weight.shape[1]
        self.weight = torch.nn.Parameter(torch.zeros(self.width, device=model.device))
        self.bias = torch.nn.Parameter(torch.zeros((), device=model.device))

    def values(self, outputs: Outputs) -> Tensor:
        """(n_sampled,) float32."""
        values: Tensor = outputs.hidden.float() @ self.weight / self.width + self.bias
        return values

    def losses(self, outputs: Outputs, part: MicroBatch, batch: TokenBatch) -> Tensor:
        """(n_sampled,) the value loss against `returns`, 0 where there are none; `values` are the old values."""
        assert batch.returns is not None
        assert batch.values is not None
        returns, old_values = part.column(batch.returns), part.column(batch.values)
        return value_loss(self.values(outputs), returns, old_values, self.settings.clip)


def critic_metrics(batch: TokenBatch) -> dict[str, float]:
    """What the critic said before the update, compared with what came.

    ``critic/explained_variance`` is 1 - var(returns - values) / var(returns): 1 is perfect, 0 no better than a
    constant. It is left out where all returns are equal.
    """
    if batch.returns is None or batch.values is None:
        return {}
    known = batch.loss_mask & ~np.isnan(batch.returns)
    if not known.any():
        return {}
    returns, values = batch.returns[known].astype(np.float64), batch.values[known].astype(np.float64)
    metrics = {"critic/value_mean": float(values.mean()), "critic/return_mean": float(returns.mean())}
    if returns.min() < returns.max():
        metrics["critic/explained_variance"] = 1 - float((returns - values).var() / returns.var())
    return metrics
