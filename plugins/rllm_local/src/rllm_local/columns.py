"""Batch columns that need a forward pass: log-probs, the critic's values, and other inputs of estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.data.batch import TokenBatch
from rllm_local.critic import Critic
from rllm_local.logprobs import Outputs, token_outputs
from rllm_local.prefix_trees import micro_batches, sampled_places
from rllm_local.reference import Reference

Column = Callable[[Outputs], Tensor]


class ColumnFiller:
    """Computes columns with the current weights. Pass `reference` and `critic` if the run needs their columns."""

    def __init__(
        self,
        model: Any,
        *,
        temperature: float,
        max_tokens_per_microbatch: int,
        recompute_old_logprobs: bool,
        reference: Reference | None = None,
        critic: Critic | None = None,
    ) -> None:
        self._model = model
        self._temperature = temperature
        self._max_tokens = max_tokens_per_microbatch
        self._reference = reference
        self._recompute = recompute_old_logprobs
        self._of_policy: dict[str, Column] = {"sum_pi_squared": lambda outputs: outputs.sum_pi_squared()}
        if critic is not None:
            self._of_policy["values"] = critic.values

    def columns(self, batch: TokenBatch, needs: frozenset[str]) -> Mapping[str, NDArray[np.float32]]:
        """Return `old_logprobs` and the columns in `needs`, each (n_token,). Tokens that were not sampled get 0.

        The trained model also samples, so its sampling log-probs serve as old log-probs. They are recomputed only if
        the run requires that or if some are unknown.
        """
        wanted = {name: column for name, column in self._of_policy.items() if name in needs}
        if self._recompute or batch.unknown_logprobs.any():
            wanted["old_logprobs"] = _logprobs
        columns = {"old_logprobs": batch.sampling_logprobs} | self._forward(self._model, batch, wanted)
        if not self._recompute and "old_logprobs" in wanted:
            columns["old_logprobs"] = batch.old_logprobs_from(columns["old_logprobs"])
        if self._reference is not None and "ref_logprobs" in needs:
            with self._reference.reference_outputs() as model:
                columns |= self._forward(model, batch, {"ref_logprobs": _logprobs})
        return columns

    @torch.no_grad()
    def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return ids and log-probs, (n_sampled of the batch, k) each, of the k likeliest tokens at each sampled token.

        Without `k`, or if it is larger than the vocabulary, return the whole vocabulary.
        """
        size = self._model.config.get_text_config().vocab_size
        shape = int(batch.loss_mask.sum()), size if k is None else min(k, size)
        ids, logprobs = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        places = sampled_places(batch)
        for part in micro_batches(batch, np.arange(batch.n_rows), self._max_tokens, self._model.device):
            found = token_outputs(self._model, part, self._temperature).top(shape[1])
            logprobs[places[part.source]], ids[places[part.source]] = (each.cpu().numpy() for each in found)
        return ids, logprobs

    @torch.no_grad()
    def _forward(self, model: Any, batch: TokenBatch, wanted: Mapping[str, Column]) -> dict[str, NDArray[np.float32]]:
        columns = {name: np.zeros(len(batch.tokens), np.float32) for name in wanted}
        if not wanted:
            return columns
        for part in micro_batches(batch, np.arange(batch.n_rows), self._max_tokens, model.device):
            outputs = token_outputs(model, part, self._temperature)
            for name, column in wanted.items():
                columns[name][part.source] = column(outputs).cpu().numpy()
        return columns


def _logprobs(outputs: Outputs) -> Tensor:
    return outputs.logprobs
