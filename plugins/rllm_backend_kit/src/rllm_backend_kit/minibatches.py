"""Split a batch's rows into optimizer steps and compute the weights of their tokens, for all backends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.batch import TokenBatch
from rllm_core.updates.aggregation import token_weights


def minibatches(n_rows: int, count: int, epochs: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each optimizer step. Every epoch shuffles all rows again and splits them into `count` steps.

    The number of steps is at most the number of rows.
    """
    generator = np.random.default_rng(seed)
    for _ in range(epochs):
        order = generator.permutation(n_rows)
        yield from np.array_split(order, min(count, n_rows))


def minibatch_weights(
    batch: TokenBatch, rows: NDArray[np.int64], aggregation: str, max_response_length: int
) -> NDArray[np.float32]:
    """(n_token of the batch,) weight of each sampled token of `rows`, 0 elsewhere; see `token_weights`."""
    ordered = np.sort(rows)
    in_rows = np.repeat(np.isin(np.arange(batch.n_rows), ordered), batch.row_lengths)
    chosen = in_rows & batch.loss_mask
    weights = np.zeros(len(batch.tokens), np.float32)
    sampled, groups = sampled_per_row(batch)[ordered], batch.group[ordered]
    weights[chosen] = token_weights(aggregation, sampled, max_response_length, groups)
    return weights


def observation_shares(batch: TokenBatch, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """(n_token of the batch,) `observation_weights` of `rows` divided by their number, 0 elsewhere. None without any.

    As in `minibatch_weights`, the divisor counts the whole optimizer step, so micro-batches change nothing.
    """
    return None if batch.observation_weights is None else _shares(batch, rows, batch.observation_weights)


def target_shares(batch: TokenBatch, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """(n_token of the batch,) `TokenTargets.weight` divided by the number of sampled tokens in `rows`, 0 elsewhere.

    None without targets.
    """
    if batch.targets is None:
        return None
    return _shares(batch, rows, np.where(batch.loss_mask, np.float32(batch.targets.weight), np.float32(0)))


def _shares(batch: TokenBatch, rows: NDArray[np.int64], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    in_rows = np.repeat(np.isin(np.arange(batch.n_rows), rows), batch.row_lengths)
    weights = np.where(in_rows, weights, np.float32(0))
    shares: NDArray[np.float32] = (weights / max(int(np.count_nonzero(weights)), 1)).astype(np.float32)
    return shares


def sampled_per_row(batch: TokenBatch) -> NDArray[np.int64]:
    """(n_row,) how many tokens of each row the model sampled."""
    before = np.concatenate(([0], np.cumsum(batch.loss_mask, dtype=np.int64)))
    return np.diff(before[batch.row_offsets])
