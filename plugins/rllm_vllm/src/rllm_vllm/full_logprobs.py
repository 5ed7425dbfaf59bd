"""Get log-probs of softmax(logits / temperature) from vLLM, before top-k and top-p remove tokens.

vLLM has two modes. ``raw_logprobs`` are log-probs before the temperature is applied. ``processed_logprobs`` are
log-probs after top-k and top-p. This module uses the second mode, and changes vLLM's samplers, so that they return the
values before top-k and top-p.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

V2_ARGUMENTS = (
    "processed_logits",
    "expanded_idx_mapping",
    "idx_mapping_np",
    "pos",
    "top_k",
    "top_p",
    "use_fused_sampler",
)
"""Arguments of the method that truncates and draws, in the sampler of vLLM's model runner V2."""


def record_before_truncation(model_runner: Any) -> bool:
    """Change the sampler of a worker's model runner in place.

    Returns:
        True if it was changed. False if it is not a sampler of vLLM 0.31, or if it checks draft tokens, because vLLM
        computes their log-probs in a different place.
    """
    sampler = getattr(model_runner, "sampler", None)
    if getattr(model_runner, "rejection_sampler", None) is not None:
        return False
    truncate = getattr(sampler, "topk_topp_sampler", None)
    if truncate is not None:
        truncate.forward = _v1(truncate.forward)
        return True
    draw = getattr(sampler, "_sample_random", None)
    if draw is None or tuple(inspect.signature(draw).parameters) != V2_ARGUMENTS:
        return False
    sampler._sample_random = _v2(draw)  # type: ignore[union-attr]
    return True


def _v1(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the sampler of model runner V1, which returns log-probs, (n_row, n_vocabulary)."""

    def sample_with_full_logprobs(logits: Tensor, generators: Any, top_k: Any, top_p: Any) -> tuple[Any, Tensor]:
        # Compute log-probs first, because the sampler changes the logits in place.
        logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
        return sample(logits, generators, top_k, top_p)[0], logprobs

    return sample_with_full_logprobs


def _v2(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the sampler of model runner V2, which returns logits, (n_row, n_vocabulary).

    vLLM computes the log-probs from them later.
    """

    def sample_with_full_logits(
        processed_logits: Tensor,
        expanded_idx_mapping: Any,
        idx_mapping_np: Any,
        pos: Any,
        top_k: Any,
        top_p: Any,
        use_fused_sampler: Any,
    ) -> tuple[Any, Tensor]:
        truncates = top_k is not None or top_p is not None
        full = processed_logits.clone() if truncates else processed_logits
        rest = (expanded_idx_mapping, idx_mapping_np, pos, top_k, top_p, use_fused_sampler)
        return sample(processed_logits, *rest)[0], full

    return sample_with_full_logits
