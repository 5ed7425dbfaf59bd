"""The aggregation of token losses: a weight for every sampled token, so that loss = sum(weight * token loss).

Weights are computed over all rows of one optimizer step, before the rows are divided into micro-batches. Therefore
micro-batching cannot change the gradient, and a micro-batch without a sampled token adds exactly 0.

The sequences of the modes ``seq-…`` are rows: a trajectory, or one segment of a trajectory whose history was rewritten.
A trajectory with prefix breaks therefore counts once per segment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def token_weights(
    mode: str,
    sampled_per_row: NDArray[np.int64],
    max_response_length: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> NDArray[np.float32]:
    """Return the weights of the sampled tokens, ordered by row.

    Args:
        mode: value of ``rllm.algorithm.loss_agg_mode``.
        sampled_per_row: (n_row,) number of sampled tokens of each row.
        max_response_length: the constant divisor of ``seq-mean-token-sum-norm`` (arXiv:2503.20783).
        groups: (n_row,) number of each row's group, from 0. Only ``prompt-mean`` needs it: the mean over groups of the
            mean over a group's tokens (arXiv:2510.13786).

    Returns:
        (sum of `sampled_per_row`,) float32.

    Raises:
        ValueError: unknown mode.
    """
    tokens = max(int(sampled_per_row.sum()), 1)
    rows = max(int((sampled_per_row > 0).sum()), 1)
    per_row: NDArray[np.float64]
    match mode:
        case "token-mean":
            per_row = np.full(sampled_per_row.shape, 1 / tokens)
        case "token-sum":
            per_row = np.ones(sampled_per_row.shape)
        case "seq-mean-token-sum":
            per_row = np.full(sampled_per_row.shape, 1 / rows)
        case "seq-mean-token-mean":
            per_row = 1 / (rows * np.maximum(sampled_per_row, 1))
        case "seq-mean-token-sum-norm":
            per_row = np.full(sampled_per_row.shape, 1 / (rows * max_response_length))
        case "prompt-mean" if groups is not None:
            per_group = np.bincount(groups, weights=sampled_per_row)
            per_row = 1 / (max(int((per_group > 0).sum()), 1) * np.maximum(per_group[groups], 1))
        case _:
            raise ValueError(f"unknown aggregation {mode!r}")
    return np.repeat(per_row, sampled_per_row).astype(np.float32)
