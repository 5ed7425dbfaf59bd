"""What a model says about the tokens of a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache


@torch.inference_mode()
def prompt_logprobs(model: Any, prompt: NDArray[np.int32], max_positions: int) -> NDArray[np.float32]:
    """The log-prob of each token after those before it, at temperature 1.

    Args:
        model: a Hugging Face causal model.
        prompt: (n,) tokens.
        max_positions: how many to compute at once; each costs a vocabulary of logits.

    Returns:
        (n,), NaN for the first token.
    """
    tokens = torch.from_numpy(prompt.astype(np.int64)).to(model.device)
    cache = DynamicCache(config=model.config)
    found = [torch.full((1,), torch.nan)]
    for start in range(0, len(prompt) - 1, max_positions):
        given = tokens[start : min(start + max_positions, len(prompt) - 1)]
        logits = model(input_ids=given[None], past_key_values=cache, use_cache=True).logits[0]
        following = tokens[start + 1 : start + 1 + len(given), None]
        found.append(torch.log_softmax(logits.float(), dim=-1).gather(-1, following)[:, 0].cpu())
    return torch.cat(found).numpy()
