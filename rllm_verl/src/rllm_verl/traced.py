"""The workers' 8 bytes per trained token, and the token trace that the driver builds from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rllm_backend_kit.update_trace import UpdateTrace
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch

if TYPE_CHECKING:
    from rllm_verl.tokens import SampledTokens


@dataclass(frozen=True, eq=False)
class TracedTokens:
    """A micro-batch's sampled tokens, row after row."""

    rows: NDArray[np.int64]
    """Row ids in the batch, (n_row,)."""
    logprobs: NDArray[np.float32]
    """Log-probs, (n_sampled,)."""
    entropies: NDArray[np.float32] | None
    """Entropies, (n_sampled,). None if the engine did not compute them."""

    @classmethod
    def from_tokens(cls, tokens: SampledTokens) -> TracedTokens:
        return cls(
            rows=torch.unique_consecutive(tokens.row_ids).cpu().numpy(),
            logprobs=tokens.logprobs.detach().float().cpu().numpy(),
            entropies=None if tokens.entropy is None else tokens.entropy.detach().float().cpu().numpy(),
        )


class DriverTrace:
    """An update's trace. It computes the losses again from the workers' values."""

    def __init__(self, trace: UpdateTrace, batch: TokenBatch) -> None:
        self._trace = trace
        self._batch = batch

    def add(self, number: int, traced: TracedTokens, weights: NDArray[np.float32], seed: int) -> None:
        """Add a micro-batch of the optimizer step `number`. `weights` are (n_token of the batch,)."""
        batch = self._batch
        parts = [_sampled(batch, row) for row in traced.rows.tolist()]
        source = np.concatenate(parts)
        row_ids = torch.from_numpy(np.repeat(traced.rows, [len(part) for part in parts]))
        logprobs = torch.tensor(traced.logprobs)  # A copy, because tensors from Ray may be read-only.
        inputs = LossInput.from_batch(batch, source, logprobs, row_ids, seed)
        entropies = None if traced.entropies is None else torch.tensor(traced.entropies)
        self._trace.add(number, source, inputs, entropies, torch.from_numpy(weights[source]))


def _sampled(batch: TokenBatch, row: int) -> NDArray[np.int64]:
    """Return the indices of a row's sampled tokens in the batch, (n,). No token predicts its first token."""
    first, end = int(batch.row_offsets[row]) + 1, int(batch.row_offsets[row + 1])
    return first + np.flatnonzero(batch.loss_mask[first:end])
