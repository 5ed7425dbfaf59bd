"""The interface to verl's workers for training. Ray runs them in a run, and a separate process runs them in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tensordict import TensorDict


class Workers(Protocol):
    """The data-parallel ranks of one model. Every call blocks until all ranks have answered.

    A batch is split over the ranks in equal parts, in order; see `rllm_verl.rows`. Results are in the batch's order.
    """

    @property
    def data_parallel_size(self) -> int:
        """Number of ranks that receive different rows."""

    def set_loss_fn(self, loss: Any) -> None:
        """Send the loss of the next `forward_backward` calls to all ranks; see `rllm_verl.policy_loss.ShippedLoss`."""

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        """Return nested ``log_probs``, and ``entropy`` or ``sum_pi_squared`` if `data` requests them."""

    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        """Return nested ``log_probs`` of the reference model."""

    def optimizer_zero_grad(self) -> None:
        """Clear the gradients."""

    def forward_backward(self, data: TensorDict) -> TensorDict:
        """Add a minibatch's gradient. The result's ``metrics`` contain the ``loss``, summed over ranks, and the loss's
        notes."""

    def optimizer_step(self, parameters: dict[str, float]) -> dict[str, float]:
        """Clip, step with these values for the optimizer's parameter groups, clear the gradients, and return metrics.

        ``grad_norm`` is the norm before clipping. If it is not finite, verl makes no step.
        """
