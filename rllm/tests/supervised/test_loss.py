"""The loss of fine-tuning is -logprob, with gradient -1, at any advantage and without old log-probs."""

from __future__ import annotations

import torch

from rllm.supervised.loss import cross_entropy
from rllm_core.contracts.loss import LossInput
from rllm_core.contracts.plugin import NoParams


def test_cross_entropy_ignores_advantages_and_ratios() -> None:
    logprobs = torch.tensor([-0.5, -2.0], requires_grad=True)
    inputs = LossInput(
        logprobs=logprobs,
        old_logprobs=torch.full((2,), torch.nan),
        advantages=torch.tensor([-3.0, 1.0]),
        row_ids=torch.tensor([0, 0]),
    )
    losses = cross_entropy(inputs, NoParams())
    losses.sum().backward()
    assert losses.tolist() == [0.5, 2.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, -1.0]
