"""The forward pass of training: what a model says about the sampled tokens of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rllm_local.rows import MicroBatch


@dataclass(frozen=True, eq=False)
class TokenOutputs:
    """One entry per sampled token, in the order of the micro-batch; computed where the token was sampled from."""

    log_distribution: Tensor
    """(n_sampled, n_vocabulary) float32, log-probs of all tokens."""
    logprobs: Tensor
    """(n_sampled,) float32, log-probs of the sampled tokens."""
    hidden: Tensor
    """(n_sampled, width) the model's last hidden states, in its own dtype."""

    def entropies(self) -> Tensor:
        """(n_sampled,) in nats."""
        return -(self.log_distribution.exp() * self.log_distribution).sum(dim=-1)

    def sum_pi_squared(self) -> Tensor:
        """(n_sampled,) sum over the vocabulary of squared probabilities."""
        return (2 * self.log_distribution).exp().sum(dim=-1)


def token_outputs(model: Any, part: MicroBatch, temperature: float) -> TokenOutputs:
    """Run a Hugging Face causal model over a micro-batch.

    Args:
        model: gradients are recorded as torch's current mode says.
        part: its rows.
        temperature: of the sampling, which recorded the log-probs that ours are compared with; greedy sampling, at 0,
            recorded them at 1.
    """
    states: list[Tensor] = []
    # What the output layer is given is the last hidden state at the positions asked for, in any causal model.
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    try:
        logits = model(input_ids=part.input_ids, use_cache=False, logits_to_keep=part.columns).logits
    finally:
        hook.remove()
    distribution = torch.log_softmax(logits[part.selected].float() / (temperature or 1.0), dim=-1)
    return TokenOutputs(
        log_distribution=distribution,
        logprobs=distribution.gather(1, part.targets[:, None])[:, 0],
        hidden=states[0][part.selected],
    )
