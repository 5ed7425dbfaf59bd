"""The gradient of the critic's loss, apart from the policy's: both go to the model, and each has a norm of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from rllm_core.data.batch import TokenBatch
from rllm_local.critic import Critic
from rllm_local.logprobs import Outputs
from rllm_local.masters import Masters
from rllm_local.rows import MicroBatch


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
