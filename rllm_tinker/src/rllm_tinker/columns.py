"""Batch columns with log-probs that the service computes, from the trainer's weights and from the reference model."""

from __future__ import annotations

import asyncio

import numpy as np

from rllm_core.data.batch import TokenBatch
from rllm_tinker.client import Sampler, Trainer
from rllm_tinker.datums import Rows


async def fill_columns(
    batch: TokenBatch,
    needs: frozenset[str],
    *,
    trainer: Trainer,
    recompute_old_logprobs: bool,
    reference: Sampler | None,
) -> TokenBatch:
    """Return the batch with `old_logprobs` and, if needed, `ref_logprobs`. Tokens that the model did not sample get 0.

    The service samples from the weights that it trains, so the sampling log-probs serve as old log-probs. The service
    recomputes them only if the config requires that or if some are unknown.
    """
    rows = Rows.from_batch(batch, np.arange(batch.n_rows))
    columns = {"old_logprobs": batch.sampling_logprobs}
    if recompute_old_logprobs or batch.unknown_logprobs.any():
        weights = batch.loss_mask.astype(np.float32)
        found = await trainer.forward(rows.datums(weights=weights))
        computed = np.where(batch.loss_mask, rows.column(found.logprobs), np.float32(0))
        columns["old_logprobs"] = computed if recompute_old_logprobs else batch.old_logprobs_from(computed)
    if reference is not None and "ref_logprobs" in needs:
        sequences = [batch.tokens[start - 1 : end] for start, end in rows.spans]
        of_rows = await asyncio.gather(*(reference.logprobs(tokens) for tokens in sequences))
        column = rows.column([logprobs[1:] for logprobs in of_rows])
        columns["ref_logprobs"] = np.where(batch.loss_mask, column, np.float32(0))
    return batch.with_columns(**columns)
