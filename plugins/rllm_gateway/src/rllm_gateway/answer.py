"""What a client is answered, whichever API it speaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Finish = Literal["stop", "length", "tool_calls"]
UNKNOWN_LOGPROB = -9999.0
"""What OpenAI's API says of a token without a log-prob; JSON has no NaN."""


@dataclass(frozen=True, kw_only=True)
class SampledToken:
    """A token of a reply, for clients that ask for log-probs."""

    text: str
    """Empty for a special token."""
    logprob: float
    top: tuple[SampledToken, ...] = ()
    """The likeliest tokens at its place, likeliest first."""

    @property
    def as_json(self) -> dict[str, Any]:
        """As OpenAI's APIs have it."""
        shown: dict[str, Any] = {
            "token": self.text,
            "bytes": list(self.text.encode(errors="replace")),
            "logprob": self.known_logprob,
        }
        return shown | {"top_logprobs": [{k: v for k, v in each.as_json.items() if k in shown} for each in self.top]}

    @property
    def known_logprob(self) -> float:
        """As JSON can say it."""
        return self.logprob if math.isfinite(self.logprob) else UNKNOWN_LOGPROB


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One reply of the model."""

    call: str
    """Id of the call, under which its tokens are kept."""
    message: dict[str, Any]
    """The assistant's message, with ``content``, and ``reasoning_content`` and ``tool_calls`` where there are any."""
    finish: Finish
    stop: str | None
    """The text that ended it."""
    tokens: int
    """How many were sampled."""
    reasoning_tokens: int = 0
    sampled: Sequence[SampledToken] = ()
    """Empty: the client has not asked for log-probs."""

    @property
    def content(self) -> str:
        return str(self.message["content"])

    @property
    def reasoning(self) -> str:
        """What the model thought; empty where it did not."""
        return self.message.get("reasoning_content") or ""

    @property
    def tool_calls(self) -> Sequence[dict[str, Any]]:
        return self.message.get("tool_calls") or ()


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The part of an answer that is known before a token is sampled."""

    id: str
    """Of the request: hexadecimal digits."""
    created: int
    """Seconds of Unix time."""
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that an earlier call of the session has seen or sampled."""


@dataclass(frozen=True, kw_only=True)
class Answer(Begun):
    """All replies to one request."""

    choices: tuple[Choice, ...]

    @property
    def tokens(self) -> int:
        """Sampled tokens of all choices."""
        return sum(choice.tokens for choice in self.choices)
