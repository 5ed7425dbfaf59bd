"""What is noted of an update, under the names that every backend uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.batch import TokenBatch
from rllm_tinker.datums import Rows


class UpdateMetrics:
    """Means over sampled tokens and over optimiser steps."""

    def __init__(self, batch: TokenBatch) -> None:
        self._batch = batch
        self._values: dict[str, list[NDArray[np.float32] | float]] = defaultdict(list)

    def add(self, name: str, value: NDArray[np.float32] | float) -> None:
        """One number, or one for each token."""
        self._values[name].append(value)

    def add_logprobs(self, rows: Rows, logprobs: Sequence[NDArray[np.float32]], *, first: bool) -> None:
        """Note the log-probs that the trainer gave the targets of rows; `first`: before any of the update's steps."""
        now, sampled = rows.column(logprobs), rows.sampled
        assert self._batch.old_logprobs is not None
        log_ratios = now[sampled] - self._batch.old_logprobs[sampled]
        self.add("actor/kl_old_new", np.exp(log_ratios) - 1 - log_ratios)
        self.add("actor/ratio_mean", np.exp(log_ratios))
        if first:
            self.add("actor/rollout_logprob_difference", np.abs(now[sampled] - self._batch.sampling_logprobs[sampled]))
        if self._batch.ref_logprobs is not None:
            difference = self._batch.ref_logprobs[sampled] - now[sampled]
            self.add("actor/kl_ref", np.exp(difference) - 1 - difference)

    def add_step(self, said: Mapping[str, float]) -> None:
        """Note what the service said of an optimiser step, ``grad_norm`` and the like; ``:mean`` and so on are cut."""
        for name, value in said.items():
            self.add(f"actor/{name.partition(':')[0]}", float(value))

    def means(self) -> dict[str, float]:
        """By name; without those of which nothing was added."""
        return {
            name: float(np.concatenate([np.atleast_1d(value) for value in values]).mean(dtype=np.float64))
            for name, values in self._values.items()
            if values
        }
