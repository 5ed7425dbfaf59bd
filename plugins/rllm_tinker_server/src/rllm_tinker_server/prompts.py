"""A model's predictions for given tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache

from rllm_tinker_server.messages import Scores, TopTokens


@torch.inference_mode()
def score(model: Any, given: NDArray[np.int32], top: int, temperature: float, max_positions: int) -> Scores:
    """The log-prob of each token after those before it, and of the likeliest tokens in its place.

    Args:
        model: a Hugging Face causal model.
        given: (n,) tokens.
        top: how many of the likeliest; 0: none.
        temperature: logits are divided by it; above 0.
        max_positions: how many to compute at once; each costs a vocabulary of logits.
    """
    tokens = torch.from_numpy(given.astype(np.int64)).to(model.device)
    cache = DynamicCache(config=model.config)
    found = [torch.full((1,), torch.nan)]
    best = [torch.full((1, top), torch.nan)]
    best_tokens = [torch.zeros((1, top), dtype=torch.int64)]
    for start in range(0, len(given) - 1, max_positions):
        part = tokens[start : min(start + max_positions, len(given) - 1)]
        logits = model(input_ids=part[None], past_key_values=cache, use_cache=True).logits[0]
        logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
        following = tokens[start + 1 : start + 1 + len(part), None]
        found.append(logprobs.gather(-1, following)[:, 0].cpu())
        likeliest = logprobs.topk(top)
        best.append(likeliest.values.cpu())
        best_tokens.append(likeliest.indices.cpu())
    return Scores(logprobs=torch.cat(found).numpy(), top=_top(best_tokens, best) if top else None)


def _top(tokens: list[Tensor], logprobs: list[Tensor]) -> TopTokens:
    return TopTokens(tokens=torch.cat(tokens).to(torch.int32).numpy(), logprobs=torch.cat(logprobs).numpy())
