"""Drawing tokens: a draw is a function of the request's seed and of its place, never of what else is in the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.contracts.engine import SamplingParams

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The step of SplitMix64 from one number of a stream to the next."""


@dataclass(frozen=True, eq=False)
class Draws:
    """One token per row."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    """Under softmax(logits / temperature), before top-k and top-p; at temperature 0 under softmax(logits)."""


def draw(logits: Tensor, sampling: Sequence[SamplingParams], positions: Sequence[int]) -> Draws:
    """Draw the next token of each row.

    Args:
        logits: (n_row, n_vocabulary).
        sampling: how to draw, one per row.
        positions: how many tokens the request has sampled already, one per row.

    Raises:
        FloatingPointError: the logits are NaN, as after an update that diverged.
    """
    temperatures = np.array([params.temperature for params in sampling], np.float32)
    greedy = temperatures == 0
    scale = torch.from_numpy(np.where(greedy, np.float32(1), temperatures)).to(logits.device)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    probabilities = _truncated(logprobs.exp().double(), sampling)
    uniform = torch.from_numpy(uniforms([params.seed for params in sampling], positions)).to(logits.device)
    cumulative = probabilities.cumsum(dim=-1)
    # The smallest token whose cumulative probability exceeds the draw: never one of probability 0.
    tokens = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    if greedy.any():
        tokens = torch.where(torch.from_numpy(greedy).to(logits.device), logits.argmax(dim=-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0].cpu().numpy()
    if not np.isfinite(chosen).all():
        raise FloatingPointError("the model's logits are not finite")
    return Draws(tokens.cpu().numpy(), chosen)


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """(n,) numbers in [0, 1), one per seed and position: SplitMix64 (Steele et al. 2014), a stream per seed."""
    state = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64))
    mixed = _mix(state + np.array(positions, np.uint64) * GAMMA)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        values = values + GAMMA
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _truncated(probabilities: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Probabilities with everything outside top-k and top-p set to 0; untouched when no row asks for it."""
    if all(params.top_k <= 0 and params.top_p >= 1 for params in sampling):
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    size = probabilities.shape[-1]
    top_k = torch.tensor([params.top_k if params.top_k > 0 else size for params in sampling], device=order.device)
    # Rounded sums exceed 1, and a top-p of 1 must keep every token all the same.
    limits = [params.top_p if params.top_p < 1 else math.inf for params in sampling]
    top_p = torch.tensor(limits, dtype=torch.float64, device=order.device)
    rank = torch.arange(size, device=order.device)
    # A token stays when the likelier ones together have not reached top-p; the likeliest always stays.
    before = ordered.cumsum(dim=-1) - ordered
    keep = (rank < top_k[:, None]) & ((before < top_p[:, None]) | (rank == 0))
    return torch.zeros_like(probabilities).scatter(1, order, ordered * keep)
