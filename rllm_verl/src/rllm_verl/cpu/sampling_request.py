"""What verl and HTTP clients ask for, checked: the engine below computes many requests at once, and one that breaks
its forward pass breaks the others with it.
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
"""Below it, but for 0, logits / temperature leave float32."""
LENGTH_NAMES = ("max_tokens", "max_new_tokens")
"""vLLM's name and SGLang's."""
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
    """Tokens that end this reply beside the model's own."""


@dataclass(frozen=True, kw_only=True)
class ContextLimits:
    """What the model allows."""

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
    """Check a request and fill in what it leaves out.

    Args:
        request_id: with the prompt's length, what the seed of a request without one is derived from.
        prompt_ids: (n,) tokens.
        asked: verl's sampling parameters; None counts as left out.
        defaults: see `ServerSettings.defaults`.
        ignore_eos: whether replies go on after a stop token, where the request does not say.
        limits: of the model.

    Raises:
        RolloutError: the request cannot be served.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    for name in given:
        if name not in KNOWN:
            raise RolloutError(
                "bad-sampling-parameter",
                f"Sampling parameter {name!r} is not one of the rollout server for CPUs.",
                did_you_mean(name, KNOWN) or f"It knows {', '.join(KNOWN)}.",
            )
    if given.get("repetition_penalty", 1) != 1:
        raise RolloutError(
            "bad-sampling-parameter",
            f"repetition_penalty={given['repetition_penalty']}: the rollout server for CPUs has none.",
            "Leave it at 1.",
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
        # vLLM counts alternatives: 0 means those of the sampled tokens alone.
        wants_logprobs=given.get("logprobs", False) is not False,
        ignores_eos=bool(given.get("ignore_eos", ignore_eos)),
        stop_ids=frozenset(map(int, given.get("stop_token_ids", ()))),
    )


def _check_prompt(prompt: Sequence[int], limits: ContextLimits) -> None:
    if not prompt:
        raise RolloutError(
            "empty-prompt", "The prompt has no tokens.", "Let the environment's first observation say something."
        )
    if len(prompt) >= limits.max_context:
        raise RolloutError(
            "prompt-too-long",
            f"A prompt of {len(prompt)} tokens leaves no room for a reply in a context of {limits.max_context}.",
            "Shorten the prompt, or raise actor_rollout_ref.rollout.max_model_len if the model allows it.",
        )
    wrong = next((token for token in prompt if not 0 <= token < limits.vocabulary), None)
    if wrong is not None:
        raise RolloutError(
            "unknown-token",
            f"The prompt has token {wrong}; the model knows 0 to {limits.vocabulary - 1}.",
            "Use the tokenizer of the model that is trained.",
        )


def _check_sampling(sampling: SamplingParams) -> None:
    if sampling.max_tokens < 1:
        raise RolloutError(
            "bad-sampling-parameter", f"max_tokens={sampling.max_tokens}.", "Ask for one token at least."
        )
    if sampling.temperature != 0 and not MIN_TEMPERATURE <= sampling.temperature < math.inf:
        raise RolloutError(
            "bad-sampling-parameter",
            f"temperature={sampling.temperature}.",
            f"Use 0 (greedy) or a number of {MIN_TEMPERATURE} or more.",
        )
    if not 0 < sampling.top_p <= 1:
        raise RolloutError("bad-sampling-parameter", f"top_p={sampling.top_p}.", "Use a number above 0, and 1 at most.")
    if sampling.top_k < -1:
        raise RolloutError(
            "bad-sampling-parameter", f"top_k={sampling.top_k}.", "Use a number of tokens, or -1 for all."
        )
