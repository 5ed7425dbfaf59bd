"""Divergences between a model's distribution and a target distribution, such as a teacher's."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST_TAIL = 1e-7
"""Smallest probability of all tokens outside the k tokens, as in TRL."""


def generalized_jsd(logprobs: Tensor, targets: Tensor, beta: float) -> Tensor:
    """Return the divergence of each row, (n,), in nats.

    p is the target, q is the model, and m = beta p + (1 - beta) q. The result is beta KL(p || m) + (1 - beta)
    KL(q || m). With beta 0 it is KL(p || q), and with beta 1 it is KL(q || p). Formula: Agarwal et al., On-Policy
    Distillation of Language Models, 2024, arXiv:2306.13649.

    Args:
        logprobs: (n, k) log-probs of the model in nats, with a gradient.
        targets: (n, k) log-probs of the target, finite.
        beta: from 0 to 1.
    """
    if beta == 0:
        return _kl(targets, logprobs)
    if beta == 1:
        return _kl(logprobs, targets)
    mixture = torch.logaddexp(logprobs + math.log1p(-beta), targets + math.log(beta))
    return beta * _kl(targets, mixture) + (1 - beta) * _kl(logprobs, mixture)


def with_tail(logprobs: Tensor) -> Tensor:
    """Return (n, k + 1) log-probs: of k tokens, and of all other tokens together.

    Args:
        logprobs: (n, k) log-probs in nats of k different tokens.
    """
    inside = logprobs.logsumexp(dim=-1, keepdim=True).clamp(max=-LEAST_TAIL)
    return torch.cat((logprobs, torch.log(-torch.expm1(inside))), dim=-1)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum(dim=-1)
