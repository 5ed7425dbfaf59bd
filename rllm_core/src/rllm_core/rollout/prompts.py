"""What every rollout engine checks of a call before it samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import RolloutError


def checked_prompt(
    prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, max_context: int
) -> tuple[NDArray[np.int32], int]:
    """The prompt, (n,), and how many tokens may be sampled behind it, one at least.

    Raises:
        RolloutError: there is no prompt, no token is asked for, or the context has no room for one.
    """
    prompt = np.asarray(prompt_ids, np.int32)
    if sampling.max_tokens < 1:
        raise RolloutError(f"max_tokens is {sampling.max_tokens}.", "Ask for one token at least.")
    if sampling.stop:
        raise RolloutError(
            f"This engine cannot end a reply at a text, such as {sampling.stop[0]!r}.",
            "Sample without `SamplingParams.stop`, or with an engine that has `stop_texts`.",
        )
    if not len(prompt):
        raise RolloutError("The prompt has no tokens.", "Let the environment's first observation say something.")
    if len(prompt) >= max_context:
        raise RolloutError(
            f"A prompt of {len(prompt)} tokens leaves no room in a context of {max_context}.",
            "Shorten the prompt, or raise training.max_length if the model allows it.",
        )
    return prompt, min(sampling.max_tokens, max_context - len(prompt))
