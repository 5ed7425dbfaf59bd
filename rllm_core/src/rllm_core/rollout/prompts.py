"""Checks of every rollout engine before it samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import RolloutError, UnsupportedSamplingError


def checked_prompt(
    prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, max_context: int
) -> tuple[NDArray[np.int32], int]:
    """Return the prompt, (n,), and the maximum number of tokens to sample, at least 1.

    Raises:
        UnsupportedSamplingError: the call requests a JSON schema or the most likely tokens.
        RolloutError: the prompt is empty, `max_tokens` is less than 1, stop strings are set, or the context has no
            room.
    """
    prompt = np.asarray(prompt_ids, np.int32)
    if sampling.max_tokens < 1:
        raise RolloutError(
            "bad-sampling-parameter", f"max_tokens is {sampling.max_tokens}.", "Set max_tokens to 1 or more."
        )
    if sampling.stop:
        raise RolloutError(
            "stop-not-supported",
            f"This engine does not support stop strings, such as {sampling.stop[0]!r}.",
            "Sample without `SamplingParams.stop`, or with an engine that has `stop_texts`.",
        )
    if sampling.json_schema is not None:
        raise UnsupportedSamplingError(
            "json-schema-not-supported",
            "This engine cannot constrain a response to a JSON schema.",
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
            "empty-prompt", "The prompt has no tokens.", "Return a non-empty first observation from the environment."
        )
    if len(prompt) >= max_context:
        raise RolloutError(
            "prompt-too-long",
            f"A prompt of {len(prompt)} tokens leaves no room in a context of {max_context}.",
            "Shorten the prompt, or raise training.max_length if the model allows it.",
        )
    return prompt, min(sampling.max_tokens, max_context - len(prompt))
