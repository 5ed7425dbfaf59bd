"""A reply in one piece: servers cut replies off where new weights come, and are asked for the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError, RolloutError
from rllm_core.seeding import derive_seed

CUT_OFF = ("aborted", "abort")
Ask = Callable[[list[int], Mapping[str, Any]], Awaitable[Any]]
"""Asks a server to continue a prompt with these sampling parameters; gives verl's `TokenOutput`."""


@dataclass
class WholeResponse:
    """What was sampled after one prompt, by one version of the weights or by several."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    """One per token."""
    spans: list[VersionSpan] = field(default_factory=list)
    """Runs of tokens by version, in order; no two neighbours are of one version."""

    def add(self, part: Any) -> None:
        """Append what a server answered (`TokenOutput`): all of it is of one version of the weights.

        Raises:
            BackendError: it has tokens without log-probs.
        """
        tokens = list(part.token_ids)
        if not tokens:
            return
        if part.log_probs is None or len(part.log_probs) != len(tokens):
            raise BackendError(
                "missing-logprobs",
                "A rollout server answered without log-probs.",
                "Set actor_rollout_ref.rollout.calculate_log_probs=true.",
            )
        version = int(part.extra_fields.get("global_steps") or 0)
        before = self.spans.pop().tokens if self.spans and self.spans[-1].version == version else 0
        self.spans.append(VersionSpan(version, before + len(tokens)))
        self.token_ids += tokens
        self.log_probs += part.log_probs


async def whole_response(ask: Ask, prompt: list[int], asked: Mapping[str, Any]) -> WholeResponse:
    """Sample a reply to its end.

    A server lets nobody in until it has the new weights, so that asking again waits for them.

    Args:
        ask: see `Ask`.
        prompt: tokens.
        asked: sampling parameters, ``max_tokens`` and ``seed`` among them.

    Raises:
        RolloutError: a server ended the reply before its first token.
        BackendError: it answered without log-probs.
    """
    response = WholeResponse()
    while True:
        done = len(response.token_ids)
        # The seed of the beginning would draw the numbers of the beginning again.
        seed = derive_seed(asked["seed"], "rest", done) if done else asked["seed"]
        part = await ask(
            [*prompt, *response.token_ids], {**asked, "max_tokens": asked["max_tokens"] - done, "seed": seed}
        )
        response.add(part)
        if part.stop_reason not in CUT_OFF or len(response.token_ids) >= asked["max_tokens"]:
            break
    if not response.token_ids:
        raise RolloutError(
            "empty-reply",
            "A rollout server ended a reply before its first token.",
            "Look at its log if this happens again.",
        )
    return response
