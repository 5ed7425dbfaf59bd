"""What workers say of each token they train on, 8 bytes, and the token trace that the driver makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rllm_backend_kit.update_trace import UpdateTrace
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.loss import LossInput
from rllm_core.data.batch import TokenBatch
from rllm_verl.verl_policy_loss import VerlPolicyLoss

if TYPE_CHECKING:
    from rllm_verl.tokens import SampledTokens


@dataclass(frozen=True, eq=False)
class TracedTokens:
    """The sampled tokens of a micro-batch, row after row."""

    rows: NDArray[np.int64]
    """(n_row,) rows of the batch."""
    logprobs: NDArray[np.float32]
    """(n_sampled,)"""
    entropies: NDArray[np.float32] | None
    """(n_sampled,) None where the engine was not asked for them."""

    @classmethod
    def of(cls, tokens: SampledTokens) -> TracedTokens:
        return cls(
            rows=torch.unique_consecutive(tokens.row_ids).cpu().numpy(),
            logprobs=tokens.logprobs.detach().float().cpu().numpy(),
            entropies=None if tokens.entropy is None else tokens.entropy.detach().float().cpu().numpy(),
        )


class DriverTrace:
    """The trace of an update. Losses are computed here once more, on what the workers say; verl's own are not."""

    def __init__(self, trace: UpdateTrace, batch: TokenBatch, plan: UpdatePlan) -> None:
        self._trace = trace
        self._batch = batch
        losses = [plan.losses[role].plugin.load() for role in batch.roles]
        self._ours = not any(isinstance(loss, VerlPolicyLoss) for loss in losses)

    def add(self, number: int, traced: TracedTokens, weights: NDArray[np.float32], seed: int) -> None:
        """Add a micro-batch of the optimiser step `number`; `weights` are (n_token of the batch,)."""
        batch = self._batch
        parts = [_sampled(batch, row) for row in traced.rows.tolist()]
        source = np.concatenate(parts)
        row_ids = torch.from_numpy(np.repeat(traced.rows, [len(part) for part in parts]))
        logprobs = torch.tensor(traced.logprobs)  # A copy, because tensors from Ray may be read-only.
        inputs = LossInput.from_batch(batch, source, logprobs, row_ids, seed)
        entropies = None if traced.entropies is None else torch.tensor(traced.entropies)
        add = self._trace.add if self._ours else self._trace.add_unexplained
        add(number, source, inputs, entropies, torch.from_numpy(weights[source]))


def _sampled(batch: TokenBatch, row: int) -> NDArray[np.int64]:
    """(n,) where the sampled tokens of a row are in the batch; nothing predicts its first token."""
    first, end = int(batch.row_offsets[row]) + 1, int(batch.row_offsets[row + 1])
    return first + np.flatnonzero(batch.loss_mask[first:end])
