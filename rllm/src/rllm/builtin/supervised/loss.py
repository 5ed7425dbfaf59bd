"""The loss of fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rllm_core.contracts.loss import LossInput
    from rllm_core.contracts.plugin import NoParams


def cross_entropy(inputs: LossInput, params: NoParams) -> Tensor:
    """Return -logprob of each trained token, (n_sampled,), in nats. Advantages are not used."""
    return -inputs.logprobs
