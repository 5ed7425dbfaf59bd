"""Check a token trace against the batch of its update."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllm_core.data.batch import TokenBatch
from rllm_core.data.record import TokenTrace

ROUNDING = 1e-4
"""How far above 0 a log-prob may lie."""


def trace_problem(trace: Any, batch: TokenBatch) -> tuple[str, str] | None:
    """Return the problem (the end of a sentence about the backend) and the remedy. None if the trace is correct."""
    if not isinstance(trace, TokenTrace):
        return (
            f"declares token traces, but returned {trace!r:.80} for a plan with a trace",
            "Return a rllm_core.data.record.TokenTrace, or remove token_trace from its capabilities.",
        )
    inside = (trace.row >= 0) & (trace.row < batch.n_rows) & (trace.position >= 0) & (trace.epoch >= 0)
    rows = np.where(inside, trace.row, 0)
    tokens = batch.row_offsets[rows] + trace.position
    inside &= tokens < batch.row_offsets[rows + 1]
    if not trace.row.size or not inside.all() or not batch.loss_mask[tokens].all():
        return (
            "traces no token, or tokens that are no sampled tokens of the batch",
            "`row` counts rows of the batch, `position` tokens of the row, both from 0; prompts are not trained on.",
        )
    if len(set(zip(trace.epoch.tolist(), tokens.tolist(), strict=True))) < trace.row.size:
        return "traces a token twice in one epoch", "Name every trained token once per epoch."
    if not np.isin(trace.clipped[~np.isnan(trace.clipped)], (0.0, 1.0)).all():
        return "reports a token as partly clipped", "`clipped` is 1, 0, or NaN if the loss does not report it."
    others = (trace.entropy, trace.weight, trace.policy_part, trace.kl_part, trace.entropy_part)
    if any(np.isinf(column).any() for column in others) or not (trace.logprob <= ROUNDING).all():
        return (
            "traces numbers that cannot be",
            "They are finite, or NaN where they are not known; log-probs are known, and 0 or less.",
        )
    return None
