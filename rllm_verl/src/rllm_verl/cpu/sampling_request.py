"""Checks of requests from verl and HTTP clients.

The engine computes many requests in one forward pass, so an invalid request would make the others fail too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllm_core.contracts.engine import SamplingParams
from rllm_core.errors import RolloutError, did_you_mean
from rllm_core.seeding import derive_seed

MIN_TEMPERATURE = 1e-6
"""Minimum temperature above 0. Below it, logits / temperature exceed the range of float32."""
LENGTH_NAMES = ("max_tokens", "max_new_tokens")
"""The names in vLLM and in SGLang."""
KNOWN = (
    *LENGTH_NAMES,
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "logprobs",
    "ignore_eos",
    "stop_token_ids",
    "repetition_penalty",
)


@dataclass(frozen=True)
class SamplingRequest:
    """One prompt to continue."""

    prompt: list[int]
    sampling: SamplingParams
    wants_logprobs: bool
    ignores_eos: bool
    stop_ids: frozenset[int]
    """Tokens that end this response, in addition to the model's stop tokens."""


@dataclass(frozen=True, kw_only=True)
class ContextLimits:
    """The model's limits."""

    vocabulary: int
    max_context: int


def sampling_request(
    request_id: str,
    prompt_ids: Sequence[int],
    asked: Mapping[str, Any],
    *,
    defaults: SamplingParams,
    ignore_eos: bool,
    limits: ContextLimits,
) -> SamplingRequest:
    """Check a request and fill in missing parameters.

    Args:
        request_id: the request's id. If the request has no seed, one is derived from this id and the prompt's length.
        prompt_ids: (n,) tokens.
        asked: verl's sampling parameters. A None value counts as missing.
        defaults: see `ServerSettings.defaults`.
        ignore_eos: default of the request's `ignore_eos`: continue after a stop token.
        limits: the model's limits.

    Raises:
        RolloutError: the request cannot be served.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in KNOWN:
            raise RolloutError(
                "bad-sampling-parameter",
                f"The rollout server for CPUs has no sampling parameter {name!r}.",
                did_you_mean(name, KNOWN) or f"Supported parameters: {', '.join(KNOWN)}.",
            )
    if given.get("repetition_penalty", 1) != 1:
        raise RolloutError(
            "bad-sampling-parameter",
            f"repetition_penalty={given['repetition_penalty']}, but the rollout server for CPUs does not support it.",
            "Set repetition_penalty=1.",
        )
    prompt = [int(token) for token in prompt_ids]
    _check_prompt(prompt, limits)
    max_tokens = next((given[name] for name in LENGTH_NAMES if name in given), defaults.max_tokens)
    sampling = SamplingParams(
        max_tokens=int(max_tokens),
        temperature=float(given.get("temperature", defaults.temperature)),
        top_p=float(given.get("top_p", defaults.top_p)),
        top_k=int(given.get("top_k", defaults.top_k)),
        seed=int(given.get("seed", derive_seed(defaults.seed, request_id, len(prompt)))),
    )
    _check_sampling(sampling)
    return SamplingRequest(
        prompt=prompt,
        sampling=sampling,
        # In vLLM this is the number of alternatives. 0 requests only the sampled tokens' log-probs.
        wants_logprobs=given.get("logprobs", False) is not False,
        ignores_eos=bool(given.get("ignore_eos", ignore_eos)),
        stop_ids=frozenset(map(int, given.get("stop_token_ids", ()))),
    )


def _check_prompt(prompt: Sequence[int], limits: ContextLimits) -> None:
    if not prompt:
        raise RolloutError(
            "empty-prompt", "The prompt has no tokens.", "Make the environment's first observation non-empty."
        )
    if len(prompt) >= limits.max_context:
        raise RolloutError(
            "prompt-too-long",
            f"A prompt of {len(prompt)} tokens leaves no room for a response in a context of {limits.max_context}.",
            "Shorten the prompt, or raise actor_rollout_ref.rollout.max_model_len if the model allows it.",
        )
    wrong = next((token for token in prompt if not 0 <= token < limits.vocabulary), None)
    if wrong is not None:
        raise RolloutError(
            "unknown-token",
            f"The prompt has token {wrong}, but the model's tokens are 0 to {limits.vocabulary - 1}.",
            "Use the trained model's tokenizer.",
        )


def _check_sampling(sampling: SamplingParams) -> None:
    if sampling.max_tokens < 1:
        raise RolloutError(
            "bad-sampling-parameter", f"max_tokens={sampling.max_tokens} is below 1.", "Set max_tokens to 1 or more."
        )
    if sampling.temperature != 0 and not MIN_TEMPERATURE <= sampling.temperature < math.inf:
        raise RolloutError(
            "bad-sampling-parameter",
            f"temperature={sampling.temperature} is not supported.",
            f"Set temperature to 0 (greedy) or to at least {MIN_TEMPERATURE}.",
        )
    if not 0 < sampling.top_p <= 1:
        raise RolloutError("bad-sampling-parameter", f"top_p={sampling.top_p}.", "Use a number above 0, and 1 at most.")
    if sampling.top_k < -1:
        raise RolloutError(
            "bad-sampling-parameter", f"top_k={sampling.top_k}.", "Use a number of tokens, or -1 for all."
        )
