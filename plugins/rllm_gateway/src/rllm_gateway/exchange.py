"""One request and its answer, whichever API the client speaks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import orjson

from rllm_core.data.messages import Message, Tool
from rllm_gateway.client import DEFAULT_ROLE
from rllm_gateway.refusals import RefusedError
from rllm_gateway.structured import Wanted

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


@dataclass(frozen=True)
class Settled:
    """Text of a choice that no later token changes."""

    reasoning: str = ""
    content: str = ""
    """Empty while `reasoning` can still grow."""


@dataclass
class Told:
    """The text of one choice that a client has been sent."""

    reasoning: str = ""
    content: str = ""

    def more(self, settled: Settled | Choice) -> Settled:
        """Return the text that follows, and count it as sent.

        Raises:
            RefusedError: sent text would have to be taken back, because of a fault of the renderer.
        """
        late = self.content and settled.reasoning != self.reasoning
        if late or not (settled.reasoning.startswith(self.reasoning) and settled.content.startswith(self.content)):
            raise RefusedError(
                500, "failed", "The model's renderer has changed text that was streamed. Send the request unstreamed."
            )
        more = Settled(settled.reasoning[len(self.reasoning) :], settled.content[len(self.content) :])
        self.reasoning, self.content = settled.reasoning, settled.content
        return more


REASONING = "reasoning_content"
"""Key of a message. Clients may leave it out when they repeat a message."""
MOST_CHOICES = 128
MOST_TOP = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A request, translated, with the parts of its path and headers that belong to it."""

    messages: Sequence[Message]
    role: str = DEFAULT_ROLE
    """Part of the path."""
    raw_prompt: str | tuple[int, ...] | None = None
    """A prompt of text or tokens, which no template is applied to; None: the messages are the prompt."""
    tools: Sequence[Tool] = ()
    n: int = 1
    max_tokens: int | None = None
    """None: as many as the session allows."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    """Number of the likeliest tokens to return with each token."""
    wanted: Wanted | None = None
    """The form of the reply; None: the model writes what it likes."""
    model: str = ""
    """As the client calls it; answers repeat it."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sent: Mapping[str, Any] = field(default_factory=dict)
    """Parameters as they were sent, without messages."""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """What became of each: ``honoured``, ``overruled`` or ``ignored``."""
    client_retry: int | None = None
    """Which retry the client says that this is, from 0; None: it says nothing."""
    traceparent: str | None = None
    """The header of this name."""

    @cached_property
    def characters(self) -> int:
        """Characters of messages and tools; thoughts of earlier turns do not count, because templates drop them."""
        return _characters([self.messages, self.tools])


def _characters(value: Any) -> int:
    match value:
        case str():
            return len(value)
        case Mapping():
            return sum(_characters(each) for key, each in value.items() if key != REASONING)
        case Sequence():
            return sum(map(_characters, value))
        case _:
            return 0


class EventStream(Protocol):
    """The server-sent events of one streamed answer. Its methods return their bytes, in the order of the events."""

    def add(self, index: int, settled: Settled) -> bytes:
        """Return the events for the new text of a choice; empty if nothing is new.

        Args:
            index: of the choice.
            settled: its text so far, which begins with the text of the call before.
        """
        ...

    def end(self, answer: Answer) -> bytes:
        """Return the events for everything that was not sent yet, and those that end the stream.

        Raises:
            RefusedError: a choice does not begin with the text that was sent.
        """
        ...


class Api(Protocol):
    """One API: pure translation, bytes out."""

    def read(self, body: dict[str, Any], unsupported: Literal["refuse", "ignore"]) -> Asked:
        """Raises RefusedError."""
        ...

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def stream(self, asked: Asked, begun: Begun) -> EventStream:
        """Begin a streamed answer."""
        ...

    def error(self, refused: RefusedError) -> bytes:
        """The body of an error."""
        ...

    def error_event(self, refused: RefusedError) -> bytes:
        """The event that ends a stream which has begun."""
        ...


KEEP_ALIVE = b": waiting\n\n"
"""A comment: clients skip it, and what is between knows that the connection lives."""


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One event; clients of OpenAI's chat API want no name."""
    said = b"" if name is None else b"event: " + name.encode() + b"\n"
    return said + b"data: " + orjson.dumps(data) + b"\n\n"
