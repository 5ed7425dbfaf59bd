"""Complete responses. A server stops a response when new weights arrive, and rllm then requests the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError, RolloutError
from rllm_core.seeding import derive_seed

CUT_OFF = ("aborted", "abort")
Ask = Callable[[list[int], Mapping[str, Any]], Awaitable[Any]]
"""A function that lets a server continue a prompt with sampling parameters and returns verl's `TokenOutput`."""


@dataclass
class WholeResponse:
    """The response to one prompt, sampled by one or several weight versions."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """One log-prob per token."""
    spans: list[VersionSpan] = field(default_factory=list)
    """Consecutive tokens by weight version, in order. Adjacent spans have different versions."""

    def add(self, part: Any) -> None:
        """Append a server's `TokenOutput`. One weight version has sampled all of it.

        Raises:
            BackendError: the output has tokens without log-probs.
        """
        tokens = list(part.token_ids)
        if not tokens:
            return
        if part.log_probs is None or len(part.log_probs) != len(tokens):
            raise BackendError(
                "missing-logprobs",
                "A rollout server returned a response without log-probs.",
                "Set actor_rollout_ref.rollout.calculate_log_probs=true.",
            )
        version = int(part.extra_fields.get("global_steps") or 0)
        before = self.spans.pop().tokens if self.spans and self.spans[-1].version == version else 0
        self.spans.append(VersionSpan(version, before + len(tokens)))
        self.token_ids += tokens
        self.log_probs += part.log_probs


async def whole_response(ask: Ask, prompt: list[int], asked: Mapping[str, Any]) -> WholeResponse:
    """Sample a response to its end.

    A server accepts no request until it has the new weights, so a second request waits for them.

    Args:
        ask: see `Ask`.
        prompt: the prompt's tokens.
        asked: sampling parameters, including ``max_tokens`` and ``seed``.

    Raises:
        RolloutError: a server ended the response before its first token.
        BackendError: a server returned tokens without log-probs.
    """
    response = WholeResponse()
    while True:
        done = len(response.token_ids)
        # Use a new seed for the rest. The first seed would draw the same random numbers again.
        seed = derive_seed(asked["seed"], "rest", done) if done else asked["seed"]
        part = await ask(
            [*prompt, *response.token_ids], {**asked, "max_tokens": asked["max_tokens"] - done, "seed": seed}
        )
        response.add(part)
        if part.stop_reason not in CUT_OFF or len(response.token_ids) >= asked["max_tokens"]:
            break
    if not response.token_ids:
        raise RolloutError(
            "empty-response",
            "A rollout server ended a response before its first token.",
            "If this happens again, check the server's log.",
        )
    return response
