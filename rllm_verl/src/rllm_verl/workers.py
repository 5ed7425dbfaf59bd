"""What training needs of verl's workers, whoever holds them: Ray in a run, a process of its own in a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tensordict import TensorDict


class Workers(Protocol):
    """The data-parallel ranks of one model. Every call blocks until all of them have answered.

    A batch is dealt to ranks in equal parts, in order: see `rllm_verl.rows`. Answers are in the order of the batch.
    """

    @property
    def data_parallel_size(self) -> int:
        """Number of ranks that are given different rows."""

    def set_loss_fn(self, loss: Any) -> None:
        """Give every rank the loss of the next `forward_backward` calls; see `rllm_verl.policy_loss.ShippedLoss`."""

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        """Nested ``log_probs``, and ``entropy`` or ``sum_pi_squared`` where `data` asks for them."""

    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        """Nested ``log_probs`` of the reference model."""

    def optimizer_zero_grad(self) -> None:
        """Forget gradients."""

    def forward_backward(self, data: TensorDict) -> TensorDict:
        """Add the gradient of a minibatch. The answer's ``metrics`` hold the ``loss``, summed over ranks, and what the
        loss noted."""

    def optimizer_step(self, parameters: dict[str, float]) -> dict[str, float]:
        """Clip, step with these values for the optimiser's parameter groups, and forget gradients.

        Returns ``grad_norm`` from before the clipping. Where it is not finite verl makes no step.
        """
