"""Log-probs before truncation, from samplers with the shape of vLLM's two: both change logits where they are."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from rllm_vllm.worker import RllmWorker

LOGITS = torch.tensor([[1.0, 2.0, 3.0, 2.5], [0.0, -1.0, 4.0, 4.5]])
CUTS: list[dict[str, Any]] = [
    {"top_k": 1, "top_p": None},
    {"top_k": None, "top_p": 0.3},
    {"top_k": 2, "top_p": 0.5},
    {"top_k": None, "top_p": None},
]


def _truncate(logits: Tensor, top_k: int | None, top_p: float | None) -> None:
    """Set what is removed to -inf, in place."""
    processors = LogitsProcessorList([TopKLogitsWarper(top_k)] if top_k else [])
    if top_p is not None:
        processors.append(TopPLogitsWarper(top_p))
    logits.copy_(processors(torch.zeros(len(logits), 1, dtype=torch.int64), logits.clone()))


class SamplerOfV1(torch.nn.Module):
    """Calls a module for top-k and top-p, which returns tokens and log-probs."""

    class Truncating(torch.nn.Module):
        def forward(self, logits: Tensor, generators: object, top_k: Any, top_p: Any) -> tuple[Tensor, Tensor]:
            _truncate(logits, top_k, top_p)
            return logits.argmax(-1), logits.log_softmax(-1)

    def __init__(self) -> None:
        super().__init__()
        self.topk_topp_sampler = self.Truncating()

    def sample(self, logits: Tensor, top_k: Any, top_p: Any) -> tuple[Tensor, Tensor]:
        tokens, logprobs = self.topk_topp_sampler(logits, {}, top_k, top_p)
        return tokens, logprobs


class SamplerOfV2:
    """Calls a method for top-k and top-p, which returns tokens and logits."""

    def _sample_random(
        self,
        processed_logits: Tensor,
        expanded_idx_mapping: Any,
        idx_mapping_np: Any,
        pos: Any,
        top_k: Any,
        top_p: Any,
        use_fused_sampler: bool,
    ) -> tuple[Tensor, Tensor]:
        _truncate(processed_logits, top_k, top_p)
        return processed_logits.argmax(-1), processed_logits

    def sample(self, logits: Tensor, top_k: Any, top_p: Any) -> tuple[Tensor, Tensor]:
        tokens, processed = self._sample_random(logits, None, None, None, top_k, top_p, False)
        return tokens, processed.log_softmax(-1)


def _worker(sampler: Any, **runner: Any) -> RllmWorker:
    worker = RllmWorker()
    worker.model_runner = SimpleNamespace(sampler=sampler, **runner)
    return worker


@pytest.mark.parametrize("sampler", [SamplerOfV1, SamplerOfV2])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_log_probs_are_those_before_truncation(sampler: Any, cut: dict[str, Any], temperature: float) -> None:
    made = sampler()
    truncated = made.sample(LOGITS / temperature, **cut)[1]
    assert bool((truncated == -math.inf).any()) == any(cut.values())
    assert _worker(made).rllm_prepare()
    tokens, logprobs = made.sample(LOGITS / temperature, **cut)
    assert tokens.tolist() == [2, 3]
    assert torch.equal(logprobs, (LOGITS / temperature).log_softmax(-1))


def test_unknown_samplers_are_unchanged_and_reported() -> None:
    class Another(SamplerOfV2):
        def _sample_random(self, logits: Tensor, top_k: Any) -> Any:  # type: ignore[override]
            return logits

    other = Another()
    assert not _worker(other).rllm_prepare()
    assert "_sample_random" not in vars(other)
    assert not _worker(None).rllm_prepare()
    assert not RllmWorker.rllm_prepare(SimpleNamespace(model_runner=SimpleNamespace()))


@pytest.mark.parametrize("sampler", [SamplerOfV1, SamplerOfV2])
def test_with_draft_tokens_log_probs_are_computed_elsewhere(sampler: Any) -> None:
    assert not _worker(sampler(), rejection_sampler=object()).rllm_prepare()
    assert _worker(sampler(), rejection_sampler=None).rllm_prepare()
