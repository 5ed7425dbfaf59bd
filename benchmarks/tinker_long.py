"""Long prompts for `benchmarks/tinker.py`: a bare loop whose samples share one prefill, and the same by the server."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types

from rllm_local import tiny

PROMPT, SAMPLES = 512, 64
CONTEXT = 1024
_numbers = itertools.count()


def save_long_model(directory: Path) -> Path:
    """The model `tiny` with a longer context: it has no position weights."""
    tokenizer = tiny.build_tokenizer()
    model = tiny.build_model(len(tokenizer), 0)
    model.config.max_position_embeddings = CONTEXT
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def new_prompt() -> list[int]:
    """Return a prompt that was not computed before."""
    return np.random.default_rng(next(_numbers)).integers(4, 40, PROMPT).tolist()


def bare_loop(model: Any, new_tokens: int) -> Callable[[], None]:
    """The prompt computed once, its cache repeated for every sample, a token at a time, with its log-prob."""
    from transformers import DynamicCache

    @torch.inference_mode()
    def sample() -> None:
        cache = DynamicCache(config=model.config)
        given = torch.tensor([new_prompt()])
        logits = model(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        cache.batch_repeat_interleave(SAMPLES)
        logits = logits.expand(SAMPLES, -1)
        for position in range(new_tokens):
            logprobs = torch.log_softmax(logits.float(), -1)
            tokens = torch.multinomial(logprobs.exp(), 1)
            logprobs.gather(-1, tokens)
            if position + 1 < new_tokens:
                logits = model(input_ids=tokens, past_key_values=cache, use_cache=True).logits[:, -1]

    return sample


def one_request(sampler: tinker.SamplingClient, new_tokens: int) -> Callable[[], None]:
    """Request all samples in one call."""

    def sample() -> None:
        params = types.SamplingParams(max_tokens=new_tokens, seed=1, stop=[])
        sampler.sample(types.ModelInput.from_ints(new_prompt()), SAMPLES, params).result()

    return sample


def many_requests(sampler: tinker.SamplingClient, new_tokens: int) -> Callable[[], None]:
    """Send a request for each sample."""

    def sample() -> None:
        prompt = types.ModelInput.from_ints(new_prompt())
        params = [types.SamplingParams(max_tokens=new_tokens, seed=seed, stop=[]) for seed in range(SAMPLES)]
        for future in [sampler.sample(prompt, 1, one) for one in params]:
            future.result()

    return sample
