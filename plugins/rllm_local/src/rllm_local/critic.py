"""The critic: a linear head on the policy's last hidden state that estimates the future reward.

The value loss has a separate gradient from the policy loss. Both change the model, and each has its own norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllm_backend_kit.loss import value_loss
from rllm_core.data.batch import TokenBatch
from rllm_local.logprobs import Outputs
from rllm_local.master_weights import MasterWeights
from rllm_local.prefix_trees import MicroBatch
from rllm_local.settings import CriticSection


class ValueGradient:
    """The gradient of the value loss for model and head, summed over an optimizer step's micro-batches.

    If both gradients were clipped together, they would be scaled by the norm of their sum. A critic with large errors
    would then leave almost no gradient for the policy. The separate gradient costs a second backward pass and a second
    gradient in memory.
    """

    def __init__(self, critic: Critic, masters: MasterWeights) -> None:
        """Start with an empty gradient. `masters` belong to the model that policy and critic share."""
        self._critic = critic
        self._masters = masters
        self._parameters = [*masters.trained_parameters, *critic.parameters()]
        self._collected: dict[torch.nn.Parameter, Tensor] = {}
        """Gradients in float32, by the parameter that the optimizer updates."""

    def clear(self) -> None:
        """Remove gradients that a failed step may have left."""
        self._collected.clear()

    def add(self, outputs: Outputs, part: MicroBatch, batch: TokenBatch, weights: Tensor) -> Tensor:
        """Add a micro-batch. The graph of `outputs` is kept for the policy's gradient.

        Args:
            outputs: the micro-batch's outputs, with gradients recorded.
            part: the micro-batch.
            batch: the whole batch, with `values` and `returns`.
            weights: (n_sampled,) weights of the micro-batch's tokens in the loss.

        Returns:
            The value losses without gradient, (n_sampled,).
        """
        losses = self._critic.losses(outputs, part, batch)
        loss = self._critic.settings.value_loss_coeff * (losses * weights).sum()
        gradients = torch.autograd.grad(loss, self._parameters, retain_graph=True, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            # Values do not depend on the output layer, unless it shares its weights with the embeddings.
            if gradient is not None:
                master, exact = self._masters.get_master(parameter), gradient.float()
                known = self._collected.get(master)
                self._collected[master] = exact if known is None else known + exact
        return losses.detach()

    def add_clipped_to_grads(self, max_norm: float) -> Tensor:
        """Move the collected gradient to the masters' `.grad`, scaled down if its norm exceeds `max_norm`.

        Returns:
            The norm over model and head before clipping, (). 0 if no gradient was collected.
        """
        norm = torch.nn.utils.get_total_norm(self._collected.values())
        # The same scale as in torch's `clip_grad_norm_`.
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        while self._collected:
            parameter, gradient = self._collected.popitem()
            clipped = gradient * scale
            parameter.grad = clipped if parameter.grad is None else parameter.grad.add_(clipped)
        return norm


class Critic(torch.nn.Module):
    """The value head. It computes one value per sampled token: (hidden state · weight) / width + bias.

    The hidden state is the state before the token. Weight and bias start at 0, so the first values are 0. Because of
    the division by the width, one learning rate suits models of all sizes: an AdamW step moves a value by about the
    learning rate.

    The value loss also trains the model. Measured on the game `guess` with three seeds, the reward after 80 steps is
    0.67 with this, 0.55 without it, and 0.62 without it but with a hidden layer in the head.
    """

    def __init__(self, model: Any, settings: CriticSection) -> None:
        super().__init__()
        self.settings = settings
        self.width = model.get_output_embeddings().weight.shape[1]
        self.weight = torch.nn.Parameter(torch.zeros(self.width, device=model.device))
        self.bias = torch.nn.Parameter(torch.zeros((), device=model.device))

    def values(self, outputs: Outputs) -> Tensor:
        """Return the sampled tokens' values, (n_sampled,) float32."""
        values: Tensor = outputs.hidden_states.float() @ self.weight / self.width + self.bias
        return values

    def losses(self, outputs: Outputs, part: MicroBatch, batch: TokenBatch) -> Tensor:
        """Return the value loss, (n_sampled,), 0 for tokens without a return. `batch.values` are the old values."""
        assert batch.returns is not None
        assert batch.values is not None
        returns, old_values = part.column(batch.returns), part.column(batch.values)
        return value_loss(self.values(outputs), returns, old_values, self.settings.clip)


def critic_metrics(batch: TokenBatch) -> dict[str, float]:
    """Return metrics that compare the values before the update with the returns.

    ``critic/explained_variance`` is 1 - var(returns - values) / var(returns). 1 is perfect, and 0 is no better than a
    constant. The metric is missing if all returns are equal.
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
