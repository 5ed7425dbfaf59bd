"""Draws tokens. A draw depends on the request's seed and the token's position, never on other rows in the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.contracts.engine import SamplingParams
from rllm_local.transfer import to_device

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The increment of SplitMix64 between two numbers of a stream."""


@dataclass(frozen=True, eq=False)
class Draws:
    """One drawn token per row."""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    """Log-probs under softmax(logits / temperature), before top-k, top-p and grammars. At temperature 0, under
    softmax(logits). If a row's logits are not finite, its log-prob is not finite either, and its token is invalid."""
    top_ids: NDArray[np.int64] | None = None
    """The likeliest tokens, likeliest first, (n_row, k). k is the maximum over rows. None if no row requests any."""
    top_logprobs: NDArray[np.float32] | None = None
    """Log-probs of `top_ids`, (n_row, k), like `logprobs`."""


def draw(
    logits: Tensor,
    sampling: Sequence[SamplingParams],
    positions: Sequence[int],
    allowed: Sequence[NDArray[np.bool_] | None] = (),
) -> Draws:
    """Draw the next token of each row.

    Args:
        logits: (n_row, n_vocabulary).
        sampling: sampling parameters, one per row.
        positions: number of tokens that the request has already sampled, one per row.
        allowed: (n_vocabulary,) True for each token that a row's grammar allows, one per row. None if all are allowed.
    """
    temperatures = np.array([params.temperature for params in sampling], np.float32)
    greedy = temperatures == 0
    scale, uniform, is_greedy = to_device(
        logits.device,
        np.where(greedy, np.float32(1), temperatures),
        uniforms([params.seed for params in sampling], positions),
        greedy,
    )
    scores = logits.float() if (temperatures == 1).all() else logits.float() / scale[:, None]
    logprobs = torch.log_softmax(scores, dim=-1)
    probabilities = logprobs.exp().double()
    masks = {row: mask for row, mask in enumerate(allowed) if mask is not None}
    if masks:
        # Rows without a grammar keep the same bits with any other rows in the pass.
        rows, allows = to_device(logits.device, np.array(list(masks)), np.stack(list(masks.values())))
        constrained = scores[rows].masked_fill(~allows, -math.inf)
        scores = scores.index_copy(0, rows, constrained)
        # Normalize over the allowed tokens only, because their share of the whole distribution can round to 0.
        probabilities = probabilities.index_copy(0, rows, torch.softmax(constrained, dim=-1).double())
    probabilities = truncate(probabilities, scores, sampling)
    cumulative = probabilities.cumsum_(dim=-1)
    # The first token whose cumulative probability exceeds the draw. Its probability is never 0.
    tokens = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    if greedy.any():
        tokens = torch.where(is_greedy, scores.argmax(dim=-1), tokens)
    # Tokens and log-probs return in one copy.
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    drawn, drawn_logprobs = torch.stack((tokens.int(), chosen.view(torch.int32))).cpu().numpy()
    draws = Draws(drawn.astype(np.int64), drawn_logprobs.view(np.float32))
    if most := max(params.top_logprobs for params in sampling):
        top = logprobs.topk(min(most, logprobs.shape[-1]))
        return replace(draws, top_ids=top.indices.cpu().numpy(), top_logprobs=top.values.cpu().numpy())
    return draws


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """Return a number in [0, 1) per seed and position, (n,), by SplitMix64 (Steele et al. 2014), a stream per seed."""
    state = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], np.uint64))
    mixed = _mix(state + np.array(positions, np.uint64) * GAMMA)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        values = values + GAMMA
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def truncate(probabilities: Tensor, scores: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Set the probabilities outside top-k and top-p to 0. Rows without top-k and top-p do not change.

    Top-k is applied first and keeps every token that ties with the k-th. Top-p is a fraction of the mass after top-k.
    Hugging Face transformers and vLLM do the same.

    Args:
        probabilities: (n_row, n_vocabulary) float64, softmax(scores).
        scores: (n_row, n_vocabulary) float32, logits / temperature. They determine the order, because probabilities can
            round to equal numbers or to 0.
        sampling: sampling parameters, one per row.

    Returns:
        The probabilities, (n_row, n_vocabulary) float64. A truncated row does not sum to 1.
    """
    cut = [row for row, params in enumerate(sampling) if params.top_k > 0 or params.top_p < 1]
    if not cut:
        return probabilities
    if len(cut) < len(sampling):
        # Rows without top-k and top-p need not be sorted.
        (rows,) = to_device(scores.device, np.array(cut))
        those = truncate(probabilities[rows], scores[rows], [sampling[row] for row in cut])
        return probabilities.index_copy(0, rows, those)
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    size = scores.shape[-1]
    top_k = [min(params.top_k, size) if params.top_k > 0 else size for params in sampling]
    # Rounded sums can exceed 1, but a top-p of 1 must keep every token.
    top_p = [params.top_p if params.top_p < 1 else math.inf for params in sampling]
    counts, shares = to_device(scores.device, np.array(top_k), np.array(top_p))
    smallest = ordered.gather(1, counts[:, None] - 1)
    mass = probabilities.gather(1, order).masked_fill(ordered < smallest, 0.0)
    # A token is kept if the sum of the likelier tokens is below top-p. The likeliest token is always kept.
    before = mass.cumsum(dim=-1) - mass
    limit = shares[:, None] * mass.sum(dim=-1, keepdim=True)
    keep = before < limit
    keep[:, 0] = True
    return torch.zeros_like(probabilities).scatter(1, order, mass * keep)
