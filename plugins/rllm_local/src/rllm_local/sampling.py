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
    """Under softmax(logits / temperature), before top-k, top-p and grammars; at temperature 0 under softmax(logits).
    Not finite if the row's logits are not: its token means nothing then."""
    top_ids: NDArray[np.int64] | None = None
    """(n_row, k) the likeliest tokens, likeliest first; k is the most that a row asks for. None if no row asks."""
    top_logprobs: NDArray[np.float32] | None = None
    """(n_row, k) as `logprobs`."""


def draw(
    logits: Tensor,
    sampling: Sequence[SamplingParams],
    positions: Sequence[int],
    allowed: Sequence[NDArray[np.bool_] | None] = (),
) -> Draws:
    """Draw the next token of each row.

    Args:
        logits: (n_row, n_vocabulary).
        sampling: how to draw, one per row.
        positions: how many tokens the request has sampled already, one per row.
        allowed: (n_vocabulary,) True for each token that a row's grammar allows, one per row; None if any may follow.
    """
    temperatures = np.array([params.temperature for params in sampling], np.float32)
    greedy = temperatures == 0
    scale = torch.from_numpy(np.where(greedy, np.float32(1), temperatures)).to(logits.device)
    scores = logits.float() if (temperatures == 1).all() else logits.float() / scale[:, None]
    logprobs = torch.log_softmax(scores, dim=-1)
    probabilities = logprobs.exp().double()
    masks = {row: mask for row, mask in enumerate(allowed) if mask is not None}
    if masks:
        # Rows without a grammar keep their bits, whichever rows share the pass.
        rows = torch.tensor(list(masks), device=logits.device)
        constrained = _constrained(scores[rows], list(masks.values()))
        scores = scores.index_copy(0, rows, constrained)
        # Probabilities of the allowed tokens only: their share of the whole distribution may round to 0.
        probabilities = probabilities.index_copy(0, rows, torch.softmax(constrained, dim=-1).double())
    probabilities = truncated(probabilities, scores, sampling)
    uniform = torch.from_numpy(uniforms([params.seed for params in sampling], positions)).to(logits.device)
    cumulative = probabilities.cumsum_(dim=-1)
    # The smallest token whose cumulative probability exceeds the draw: never one of probability 0.
    tokens = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    if greedy.any():
        tokens = torch.where(torch.from_numpy(greedy).to(logits.device), scores.argmax(dim=-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0].cpu().numpy()
    if most := max(params.top_logprobs for params in sampling):
        top = logprobs.topk(min(most, logprobs.shape[-1]))
        return Draws(tokens.cpu().numpy(), chosen, top.indices.cpu().numpy(), top.values.cpu().numpy())
    return Draws(tokens.cpu().numpy(), chosen)


def _constrained(scores: Tensor, allowed: Sequence[NDArray[np.bool_]]) -> Tensor:
    """(n_row, n_vocabulary): -inf for each token that the row's grammar does not allow."""
    return scores.masked_fill(torch.from_numpy(~np.stack(allowed)).to(scores.device), -math.inf)


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


def truncated(probabilities: Tensor, scores: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Set the probabilities outside top-k and top-p to 0. Rows are the same when no row asks for either.

    Top-k comes first and keeps every token that ties with the k-th. Top-p is a share of what top-k leaves. Hugging Face
    transformers and vLLM do the same.

    Args:
        probabilities: (n_row, n_vocabulary) float64, those of softmax(scores).
        scores: (n_row, n_vocabulary) float32, logits / temperature. They decide the order: probabilities may round to
            equal numbers, or to 0.
        sampling: one per row.

    Returns:
        (n_row, n_vocabulary) float64. A row with a cut does not sum to 1.
    """
    cut = [row for row, params in enumerate(sampling) if params.top_k > 0 or params.top_p < 1]
    if not cut:
        return probabilities
    if len(cut) < len(sampling):
        # Rows that ask for neither need not be sorted.
        rows = torch.tensor(cut, device=scores.device)
        those = truncated(probabilities[rows], scores[rows], [sampling[row] for row in cut])
        return probabilities.index_copy(0, rows, those)
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    size, device = scores.shape[-1], scores.device
    top_k = [min(params.top_k, size) if params.top_k > 0 else size for params in sampling]
    # Rounded sums may exceed 1. A top-p of 1 keeps every token all the same.
    top_p = [params.top_p if params.top_p < 1 else math.inf for params in sampling]
    smallest = ordered.gather(1, torch.tensor(top_k, device=device)[:, None] - 1)
    mass = probabilities.gather(1, order).masked_fill(ordered < smallest, 0.0)
    # A token stays when the likelier ones together have not reached top-p. The likeliest always stays.
    before = mass.cumsum(dim=-1) - mass
    limit = torch.tensor(top_p, dtype=torch.float64, device=device)[:, None] * mass.sum(dim=-1, keepdim=True)
    keep = before < limit
    keep[:, 0] = True
    return torch.zeros_like(probabilities).scatter(1, order, mass * keep)
