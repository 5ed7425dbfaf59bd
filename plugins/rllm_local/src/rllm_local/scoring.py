"""Scores of a probe: from the forward pass of updates, from the pass of sampling, and with faulty weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rllm_backend_kit.weight_comparison import probe_batch
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.weight_comparison import KnownFault, Probe
from rllm_local.forward import Row, logits_after
from rllm_local.kv_cache import PageCache
from rllm_local.logprobs import token_outputs
from rllm_local.pages import page_count
from rllm_local.prefix_trees import micro_batches
from rllm_local.weights import digest_parameters, trained_weights

if TYPE_CHECKING:
    from rllm_local.trainer import Trainer

Scores = NDArray[np.float32]
ROUNDED = {KnownFault.BFLOAT16: torch.bfloat16, KnownFault.FLOAT16: torch.float16}


@torch.no_grad()
def score_to_train(trainer: Trainer, probe: Probe) -> Scores:
    """Return the scores of a probe, (n_score,), from the forward pass of updates."""
    batch, model = probe_batch(probe), trainer.loaded.model
    scores = np.zeros(batch.tokens.shape, np.float32)
    for part in micro_batches(batch, np.arange(batch.n_rows), trainer.max_tokens, model.device):
        scores[part.source] = token_outputs(model, part, 1.0).logprobs.cpu().numpy()
    return scores[batch.loss_mask]


@torch.inference_mode()
def score_to_sample(model: Any, probe: Probe) -> Scores:
    """Return the scores of a probe, (n_score,), from the forward pass of sampling, with an empty cache."""
    rows, length = probe.tokens.shape
    pages = np.arange(1, rows * page_count(length) + 1).reshape(rows, -1).tolist()
    cache = PageCache(model.config, rows * page_count(length))
    sampling = SamplingParams(max_tokens=1)
    fresh = [Row(of_row, 0, tokens[:-1], sampling, 0) for of_row, tokens in zip(pages, probe.tokens, strict=True)]
    forced = torch.from_numpy(probe.tokens[:, probe.prompt :].astype(np.int64)).to(model.device)
    logits = logits_after(model, cache, fresh, forced.shape[1])
    logprobs = torch.log_softmax(logits.float(), dim=-1).gather(2, forced[:, :, None])
    scores: Scores = logprobs.flatten().cpu().numpy()
    return scores


def score_suspects(trainer: Trainer, probe: Probe) -> dict[KnownFault, Scores]:
    """Return the scores of a probe, (n_score,), with each fault. Faults with infinite scores or NaN are removed."""
    adapter, scores = trainer.loaded.adapter, {}
    if adapter is not None:
        with adapter.switched_off():
            scores[KnownFault.NO_ADAPTER] = score_to_train(trainer, probe)
        with adapter.applied_twice():
            scores[KnownFault.ADAPTER_TWICE] = score_to_train(trainer, probe)
    for fault, dtype in ROUNDED.items():
        with _round_weights(trained_weights(trainer.loaded.model), dtype):
            scores[fault] = score_to_train(trainer, probe)
    return {fault: each for fault, each in scores.items() if np.isfinite(each).all()}


def trained_digests(trainer: Trainer) -> dict[str, str]:
    """Return the digests of the trained weights, see `digest_parameters`."""
    return digest_parameters(trainer.loaded.model)


@contextmanager
def _round_weights(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Replace weights by their values in a type with fewer bits in this context."""
    exact = {name: weight.data for name, weight in weights.items()}
    try:
        for name, weight in weights.items():
            weight.data = exact[name].to(dtype).to(weight.dtype)
        yield
    finally:
        for name, weight in weights.items():
            weight.data = exact[name]
