"""What every rollout engine checks of a call before it samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import RolloutError, UnsupportedSamplingError


def checked_prompt(
    prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, max_context: int
) -> tuple[NDArray[np.int32], int]:
    """The prompt, (n,), and how many tokens may be sampled behind it, one at least.

    Raises:
        UnsupportedSamplingError: the reply must match a JSON schema, or the likeliest tokens are asked for.
        RolloutError: there is no prompt, no token is asked for, or the context has no room for one.
    """
    prompt = np.asarray(prompt_ids, np.int32)
    if sampling.max_tokens < 1:
        raise RolloutError(
            "bad-sampling-parameter", f"max_tokens is {sampling.max_tokens}.", "Ask for one token at least."
        )
    if sampling.stop:
        raise RolloutError(
            "stop-not-supported",
            f"This engine cannot end a reply at a text, such as {sampling.stop[0]!r}.",
            "Sample without `SamplingParams.stop`, or with an engine that has `stop_texts`.",
        )
    if sampling.json_schema is not None:
        raise UnsupportedSamplingError(
            "json-schema-not-supported",
            "This engine cannot constrain a reply to a JSON schema.",
            "Sample without `SamplingParams.json_schema`, or with the backend `local`.",
        )
    if sampling.top_logprobs:
        raise UnsupportedSamplingError(
            "top-logprobs-not-supported",
            "This engine returns log-probs of sampled tokens only.",
            "Sample without `SamplingParams.top_logprobs`, or with the backend `local` and its own engine.",
        )
    if not len(prompt):
        raise RolloutError(
            "empty-prompt", "The prompt has no tokens.", "Let the environment's first observation say something."
        )
    if len(prompt) >= max_context:
        raise RolloutError(
            "prompt-too-long",
            f"A prompt of {len(prompt)} tokens leaves no room in a context of {max_context}.",
            "Shorten the prompt, or raise training.max_length if the model allows it.",
        )
    return prompt, min(sampling.max_tokens, max_context - len(prompt))
