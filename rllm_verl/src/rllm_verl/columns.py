"""Batch columns that need a forward pass: old and reference log-probs, and inputs of estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.weight_comparison import probe_batch
from rllm_core.contracts.weight_comparison import KnownFault, Probe
from rllm_core.data.batch import TokenBatch
from rllm_verl.rows import MicroBatching, ShardedRows, Workers

if TYPE_CHECKING:
    from tensordict import TensorDict

ReferencePass = Callable[[Workers, "TensorDict"], "TensorDict"]
"""A function for log-probs under the reference model: `reference_worker` or `without_adapter`."""


@dataclass(frozen=True, kw_only=True)
class ColumnSettings:
    """A run's settings for its columns."""

    temperature: float
    """Sampling temperature."""
    recompute_old_logprobs: bool
    """True if old log-probs come from the trainer's own forward pass instead of the sampler."""
    micro_batching: MicroBatching
    """Micro-batches of ``compute_log_prob``."""
    reference: ReferencePass | None = None
    """The reference model's forward pass. None if the run has no reference model."""
    reference_micro_batching: MicroBatching | None = None
    """Micro-batches of the reference model's pass. None to use `micro_batching`."""


def reference_worker(workers: Workers, data: TensorDict) -> TensorDict:
    """Return log-probs under a reference model that is a frozen copy with its own workers."""
    return workers.compute_ref_log_prob(data)


def without_adapter(workers: Workers, data: TensorDict) -> TensorDict:
    """Return log-probs under the trained model without its LoRA adapter. No copy is needed."""
    data.set_non_tensor("no_lora_adapter", True)
    return workers.compute_log_prob(data)


def fill_columns(workers: Workers, batch: TokenBatch, needs: frozenset[str], settings: ColumnSettings) -> TokenBatch:
    """Return the batch with `old_logprobs` and the columns in `needs`. Tokens that the model did not sample get 0.

    The sampling log-probs serve as old log-probs. The workers recompute them only if the settings require that or if
    some are unknown.
    """
    columns = {"old_logprobs": batch.sampling_logprobs}
    unknown = bool(batch.unknown_logprobs.any())
    if settings.recompute_old_logprobs or unknown or "sum_pi_squared" in needs:
        rows = _all_rows(workers, batch, settings.micro_batching)
        squared = "sum_pi_squared" in needs
        output = workers.compute_log_prob(_request(rows, settings, calculate_sum_pi_squared=squared))
        if settings.recompute_old_logprobs:
            columns["old_logprobs"] = rows.column(output["log_probs"])
        elif unknown:
            columns["old_logprobs"] = batch.old_logprobs_from(rows.column(output["log_probs"]))
        if squared:
            columns["sum_pi_squared"] = rows.column(output["sum_pi_squared"])
    if settings.reference is not None and "ref_logprobs" in needs:
        rows = _all_rows(workers, batch, settings.reference_micro_batching or settings.micro_batching)
        output = settings.reference(workers, _request(rows, settings))
        columns["ref_logprobs"] = rows.column(output["log_probs"])
    return batch.with_columns(**columns)


def score_probe(
    workers: Workers, probe: Probe, settings: ColumnSettings, fault: KnownFault | None = None
) -> NDArray[np.float32]:
    """Return the log-probs of a probe's scored tokens at temperature 1, (n_score,), with a fault of the weights."""
    batch = probe_batch(probe)
    rows = _all_rows(workers, batch, settings.micro_batching)
    data = _request(rows, replace(settings, temperature=1.0))
    if fault is None:
        output = workers.compute_log_prob(data)
    elif fault is KnownFault.NO_ADAPTER:
        output = without_adapter(workers, data)
    else:
        with workers.with_fault(fault):
            output = workers.compute_log_prob(data)
    return rows.column(output["log_probs"])[batch.loss_mask]


def _all_rows(workers: Workers, batch: TokenBatch, micro: MicroBatching) -> ShardedRows:
    return ShardedRows.from_batch(batch, np.arange(batch.n_rows), workers.data_parallel_size, micro)


def _request(rows: ShardedRows, settings: ColumnSettings, **options: Any) -> TensorDict:
    # Greedy sampling (temperature 0) records log-probs at temperature 1.
    temperature = settings.temperature or 1.0
    return rows.tensordict({}, temperature=temperature, calculate_entropy=False, compute_loss=False, **options)
