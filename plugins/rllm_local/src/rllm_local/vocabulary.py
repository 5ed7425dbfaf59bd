"""Log-probs and entropies over a vocabulary, computed in chunks of tokens, so that not all logits exist at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint

from rllm_local.exact_attention import FEWEST_ROWS
from rllm_local.transfer import to_device

CHUNK = 1 << 24
"""Number of logits in a chunk: 64 MB in float32, or 110 tokens with a vocabulary of 152,000."""


@dataclass(frozen=True, eq=False)
class ChunkedOutputs:
    """The same outputs as `TokenOutputs`, for a model whose output layer is a plain linear layer."""

    logprobs_of_entries: Tensor
    """Log-probs of the sampled tokens, (n_entry,) float32."""
    states: Tensor
    """Last hidden states in the model's type, (n_entry, width)."""
    entropies_of_entries: Tensor
    """Entropies in nats, (n_entry,) float32."""
    entries: Tensor
    """Entry of each sampled token, (n_sampled,) int64."""
    head: torch.nn.Linear
    temperature: float

    def at(self, chosen: NDArray[np.int64]) -> ChunkedOutputs:
        """Return the outputs of the sampled tokens `chosen`, (n,) indices."""
        return replace(self, entries=self.entries[to_device(self.entries.device, chosen)[0]])

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self.head.weight.shape[0])

    @property
    def logprobs(self) -> Tensor:
        """Log-probs of the sampled tokens, (n_sampled,) float32."""
        return self.logprobs_of_entries.index_select(0, self.entries)

    @property
    def hidden_states(self) -> Tensor:
        """Last hidden states in the model's type, (n_sampled, width)."""
        return self.states.index_select(0, self.entries)

    def of_ids(self, ids: Tensor) -> Tensor:
        """Return the log-probs, (n_sampled, k), of other tokens at the same positions: `ids`, (n_sampled, k) int64.

        The logits are computed again for them, and once more for the gradient.
        """
        hidden = self.hidden_states
        parts = [
            checkpoint(self._of_ids, hidden[part], ids[part], use_reentrant=False, preserve_rng_state=False)
            for part in _chunks(len(ids), self.vocabulary)
        ]
        return torch.cat(parts) if parts else hidden.new_zeros(ids.shape, dtype=torch.float32)

    def _of_ids(self, hidden: Tensor, ids: Tensor) -> Tensor:
        return _log_distribution(hidden, self.head.weight, self.head.bias, self.temperature).gather(1, ids)

    @torch.no_grad()
    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return log-probs and ids, (n_sampled, k) each, of the k likeliest tokens, without a gradient."""
        weight, bias = self.head.weight, self.head.bias
        logprobs, ids = zip(
            *(
                _log_distribution(self.states[part], weight, bias, self.temperature).topk(k)
                for part in _chunks(len(self.states), weight.shape[0])
            ),
            strict=True,
        )
        return torch.cat(logprobs)[self.entries], torch.cat(ids)[self.entries]

    def entropies(self) -> Tensor:
        """Return the entropies in nats, (n_sampled,). They have a gradient if torch records gradients."""
        entropies = self.entropies_of_entries.index_select(0, self.entries)
        return entropies if torch.is_grad_enabled() else entropies.detach()

    @torch.no_grad()
    def sum_pi_squared(self) -> Tensor:
        """Return the sums of squared probabilities over the vocabulary, (n_sampled,), without a gradient."""
        weight, bias = self.head.weight, self.head.bias
        sums = [
            (2 * _log_distribution(self.states[part], weight, bias, self.temperature)).exp().sum(dim=-1)
            for part in _chunks(len(self.states), weight.shape[0])
        ]
        return torch.cat(sums)[self.entries]


def chunked_outputs(
    head: torch.nn.Linear, states: Tensor, following: Tensor, entries: Tensor, temperature: float
) -> ChunkedOutputs:
    """Compute the output layer's results for sampled tokens.

    Args:
        head: the model's output layer.
        states: (n_entry, width) inputs of the output layer.
        following: (n_entry,) int64, the sampled tokens.
        entries: (n_sampled,) int64, entry of each sampled token.
        temperature: a number above 0.
    """
    logprobs, entropies = _LogprobsAndEntropies.apply(  # type: ignore[no-untyped-call]
        states, head.weight, head.bias, following, temperature
    )
    return ChunkedOutputs(logprobs, states, entropies, entries, head, temperature)


class Distribution(torch.autograd.Function):
    """Log-probs of all tokens, log-probs of the sampled tokens, and entropies, from logits.

    Its gradient has one tensor of the logits' size, and torch's own has three.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, following: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return (n, n_vocabulary), (n,) and (n,), float32."""
        distribution = torch.log_softmax(logits.float() if temperature == 1 else logits.float() / temperature, dim=-1)
        entropies = -distribution.exp().mul_(distribution).sum(dim=-1)
        ctx.save_for_backward(distribution, following, entropies)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.set_materialize_grads(False)
        return distribution, distribution.gather(1, following[:, None])[:, 0], entropies

    @staticmethod
    def backward(
        ctx: Any, of_distribution: Tensor | None, of_logprobs: Tensor | None, of_entropies: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        distribution, following, entropies = ctx.saved_tensors
        gradient: Tensor | None = None
        if of_logprobs is not None or of_entropies is not None:
            if of_entropies is not None:
                distribution = distribution.clone()
            gradient = _of_logits(distribution, following, entropies, of_logprobs, of_entropies)
        if of_distribution is not None:
            shares = ctx.saved_tensors[0].exp().mul_(-of_distribution.sum(dim=-1, keepdim=True)).add_(of_distribution)
            gradient = shares if gradient is None else gradient.add_(shares)
        if gradient is not None:
            gradient = (gradient if ctx.temperature == 1 else gradient.div_(ctx.temperature)).to(ctx.dtype)
        return gradient, None, None


class _LogprobsAndEntropies(torch.autograd.Function):
    """A function that stores only hidden states for the gradient, and recomputes the logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = (torch.empty(len(hidden), device=hidden.device) for _ in range(2))
        for part in _chunks(len(hidden), weight.shape[0]):
            log_distribution = _log_distribution(hidden[part], weight, bias, temperature)
            logprobs[part] = log_distribution.gather(1, targets[part, None])[:, 0]
            entropies[part] = -(log_distribution.exp().mul_(log_distribution)).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropies)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies = ctx.saved_tensors
        of_hidden, of_weight, of_bias, *_ = ctx.needs_input_grad
        hidden_gradient = torch.empty_like(hidden) if of_hidden else None
        # Sum the chunks in float32, with any computation type of the model.
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if of_weight else None
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if of_bias else None
        for part in _chunks(len(hidden), weight.shape[0]):
            log_distribution = _log_distribution(hidden[part], weight, bias, ctx.temperature)
            of_these = tuple(None if gradient is None else gradient[part] for gradient in gradients)
            of_logits = _of_logits(log_distribution, targets[part], entropies[part], *of_these)
            of_logits = of_logits.div_(ctx.temperature).to(weight.dtype)
            if hidden_gradient is not None:
                torch.mm(of_logits, weight, out=hidden_gradient[part])
            if weight_gradient is not None:
                _add_product(weight_gradient, of_logits.T, hidden[part])
            if bias_gradient is not None:
                bias_gradient += of_logits.sum(dim=0, dtype=torch.float32)
        return (
            hidden_gradient,
            None if weight_gradient is None else weight_gradient.to(weight.dtype),
            None if bias_gradient is None else bias_gradient.to(weight.dtype),
            None,
            None,
        )


def _log_distribution(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    # A product of fewer rows has a different order of sums than the sampler's.
    rows = max(len(hidden), FEWEST_ROWS)
    logits = linear(pad(hidden, (0, 0, 0, rows - len(hidden))), weight, bias)[: len(hidden)].float()
    return torch.log_softmax(logits if temperature == 1 else logits.div_(temperature), dim=-1)


def _of_logits(
    log_distribution: Tensor,
    targets: Tensor,
    entropies: Tensor,
    of_logprobs: Tensor | None,
    of_entropies: Tensor | None,
) -> Tensor:
    """Return the gradient of the logits, (n, n_vocabulary).

    d log p(y) / d z = [y] - p, and d H / d z = -p (log p + H), each times the incoming gradient.
    """
    probabilities = log_distribution.exp()
    if of_entropies is None:
        assert of_logprobs is not None
        gradient = probabilities.mul_(-of_logprobs[:, None])
    else:
        scale = log_distribution.add_(entropies[:, None]).mul_(of_entropies[:, None])
        if of_logprobs is not None:
            scale += of_logprobs[:, None]
        gradient = probabilities.mul_(scale).neg_()
    if of_logprobs is not None:
        gradient.scatter_add_(1, targets[:, None], of_logprobs[:, None])
    return gradient


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, CHUNK // vocabulary)
    # Use chunks of equal size, so that the last chunk does not have only a few tokens.
    count = -(-tokens // size)
    size = -(-tokens // max(1, count))
    for start in range(0, tokens, max(1, size)):
        yield slice(start, start + size)
