"""The critic: a linear head on the policy's last hidden state estimates the reward still to come.

Its loss has a gradient apart from the policy's: both go to the model, and each has its own norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_backend_kit.loss import value_loss
from rllm_core.data.batch import TokenBatch
from rllm_local.logprobs import Outputs
from rllm_local.masters import Masters
from rllm_local.rows import MicroBatch
from rllm_local.settings import CriticSection


class ValueGradient:
    """Collects over the micro-batches of an optimiser step what the value loss asks of the model and of the head.

    Clipped together, the two gradients would be scaled by the norm of their sum, and a critic that is far off would
    leave the policy next to nothing. It costs a second backward pass, and a second gradient in memory.
    """

    def __init__(self, critic: Critic, masters: Masters) -> None:
        """`masters` are of the model that policy and critic share."""
        self._critic = critic
        self._masters = masters
        self._parameters = [*masters.trained, *critic.parameters()]
        self._collected: dict[torch.nn.Parameter, Tensor] = {}
        """float32, by what the optimiser moves."""

    def clear(self) -> None:
        """Forget what a step that failed may have left."""
        self._collected.clear()

    def add(self, outputs: Outputs, part: MicroBatch, batch: TokenBatch, weights: Tensor) -> Tensor:
        """Add a micro-batch. The graph of `outputs` is kept, for the policy's gradient.

        Args:
            outputs: of the micro-batch, with gradients recorded.
            part: its rows.
            batch: where they are from, with `values` and `returns`.
            weights: (n_sampled,) of its tokens in the loss.

        Returns:
            (n_sampled,) the value losses, without gradient.
        """
        losses = self._critic.losses(outputs, part, batch)
        loss = self._critic.settings.value_loss_coeff * (losses * weights).sum()
        gradients = torch.autograd.grad(loss, self._parameters, retain_graph=True, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            # Values do not depend on the output layer, unless the embeddings are its weights.
            if gradient is not None:
                master, exact = self._masters.of(parameter), gradient.float()
                known = self._collected.get(master)
                self._collected[master] = exact if known is None else known + exact
        return losses.detach()

    def add_clipped_to_grads(self, max_norm: float) -> Tensor:
        """Move what was collected to the masters' `.grad`, scaled down to `max_norm` where its norm is larger.

        Returns:
            () the norm it had, over model and head; 0 where nothing was collected.
        """
        norm = torch.nn.utils.get_total_norm(self._collected.values())
        # As torch's `clip_grad_norm_` scales.
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        while self._collected:
            parameter, gradient = self._collected.popitem()
            clipped = gradient * scale
            parameter.grad = clipped if parameter.grad is None else parameter.grad.add_(clipped)
        return norm


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
