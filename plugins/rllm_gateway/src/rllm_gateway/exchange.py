"""A request and its answer, independent of the client's API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from rllm_core.data.messages import Message, Tool
from rllm_gateway.client import DEFAULT_ROLE
from rllm_gateway.fields import RefusedError
from rllm_gateway.structured import ResponseFormat

Finish = Literal["stop", "length", "tool_calls"]
UNKNOWN_LOGPROB = -9999.0
"""Value of a missing log-prob in OpenAI's API, because JSON has no NaN."""


@dataclass(frozen=True, kw_only=True)
class SampledToken:
    """A token of a response, for clients that request log-probs."""

    id: int
    """Token id."""
    text: str
    """Text of the token. Empty for a special token."""
    logprob: float
    top: tuple[SampledToken, ...] = ()
    """The most likely tokens at this position, most likely first."""

    @property
    def as_json(self) -> dict[str, Any]:
        """The token in the format of OpenAI's APIs."""
        shown: dict[str, Any] = {
            "token": self.text,
            "bytes": list(self.text.encode(errors="replace")),
            "logprob": self.known_logprob,
        }
        return shown | {"top_logprobs": [{k: v for k, v in each.as_json.items() if k in shown} for each in self.top]}

    @property
    def known_logprob(self) -> float:
        """The log-prob as a number that JSON supports."""
        return self.logprob if math.isfinite(self.logprob) else UNKNOWN_LOGPROB


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One response of the model."""

    call: str
    """Id of the call, under which its tokens are stored."""
    message: dict[str, Any]
    """The assistant's message with ``content``. It has ``reasoning_content`` and ``tool_calls`` only if not empty."""
    finish: Finish
    stop: str | None
    """The stop string that ended the response. None if no stop string did."""
    token_ids: NDArray[np.int32]
    """(n,) sampled tokens."""
    reasoning_tokens: int = 0
    sampled: Sequence[SampledToken] = ()
    """The tokens with log-probs. Empty if the client did not request log-probs."""

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.token_ids)

    @property
    def content(self) -> str:
        return str(self.message["content"])

    @property
    def reasoning(self) -> str:
        """The model's reasoning. Empty if there is none."""
        return self.message.get("reasoning_content") or ""

    @property
    def tool_calls(self) -> Sequence[dict[str, Any]]:
        return self.message.get("tool_calls") or ()


@dataclass(frozen=True, kw_only=True)
class Begun:
    """The part of an answer that is available before a token is sampled."""

    id: str
    """Id of the request, hexadecimal digits."""
    created: int
    """Time of the request, as Unix time in seconds."""
    prompt_tokens: int
    cached_tokens: int
    """Number of prompt tokens that are part of the prompt or the response of an earlier call of the session."""


@dataclass(frozen=True, kw_only=True)
class Answer(Begun):
    """All responses to one request."""

    choices: tuple[Choice, ...]

    @property
    def tokens(self) -> int:
        """Sampled tokens of all choices."""
        return sum(choice.tokens for choice in self.choices)


@dataclass(frozen=True)
class FinalText:
    """The text of a choice that later tokens cannot change."""

    reasoning: str = ""
    content: str = ""
    """Empty while `reasoning` can still grow."""


@dataclass
class SentText:
    """The text of one choice that was already sent to the client."""

    reasoning: str = ""
    content: str = ""

    def more(self, final: FinalText | Choice) -> FinalText:
        """Return the text that follows, and count it as sent.

        Raises:
            RefusedError: sent text would have to be taken back, because of a fault of the renderer.
        """
        late = self.content and final.reasoning != self.reasoning
        if late or not (final.reasoning.startswith(self.reasoning) and final.content.startswith(self.content)):
            raise RefusedError(
                500, "failed", "The model's renderer has changed text that was streamed. Send the request unstreamed."
            )
        more = FinalText(final.reasoning[len(self.reasoning) :], final.content[len(self.content) :])
        self.reasoning, self.content = final.reasoning, final.content
        return more


REASONING = "reasoning_content"
"""Key of a message's reasoning. Clients may omit it when they repeat a message."""
MOST_CHOICES = 128
MOST_TOP = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelRequest:
    """A request, independent of its API, with the data from its path and headers."""

    messages: Sequence[Message] = ()
    prompt_ids: NDArray[np.int32] | None = None
    """(n,) tokens of the prompt, if the client sent tokens. None: `messages` and `tools` are rendered."""
    prompt_text: str | None = None
    """The prompt, if the client sent text that needs no template. `encode_prompt` makes `prompt_ids` of it."""
    adds_special_tokens: bool = True
    """True if the tokenizer adds its special tokens to `prompt_text`."""
    is_plain: bool = False
    """True if the response is plain text, from which reasoning is not separated."""
    prompt_parameter: str = "messages"
    """Parameter with the prompt, for errors."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that must end a response. The model's renderer must have all of them."""
    role: str = DEFAULT_ROLE
    """Role in the request's path."""
    tools: Sequence[Tool] = ()
    numbered_calls: bool = False
    """True if the id of a sampled tool call is its number in the conversation, because clients may omit ids."""
    n: int = 1
    max_tokens: int | None = None
    """Maximum number of tokens of a response. None: the session's limit."""
    stop: tuple[str, ...] = ()
    stream: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    """Number of most likely tokens to return with each token."""
    response_format: ResponseFormat | None = None
    """Required form of the response. None: any form."""
    model: str = ""
    """Model name in the request, which answers repeat."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sent: Mapping[str, Any] = field(default_factory=dict)
    """Parameters in their original form, without messages."""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> its outcome: ``honored``, ``overruled`` or ``ignored``."""
    client_retry: int | None = None
    """Number of the client's retry, from 0. None if the client sent none."""

    @cached_property
    def characters(self) -> int:
        """Number of characters of the prompt. Earlier reasoning is not counted, because templates drop it."""
        return _characters([self.prompt_text, self.messages, self.tools])


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

    def add(self, index: int, final: FinalText) -> bytes:
        """Return the events for the new text of a choice; empty if nothing is new.

        Args:
            index: index of the choice.
            final: the choice's text so far. It begins with the text of the previous call of `add`.
        """
        ...

    def end(self, answer: Answer) -> bytes:
        """Return the events for all text that was not sent yet, and the events that end the stream.

        Raises:
            RefusedError: a choice does not begin with the text that was sent.
        """
        ...


class Api(Protocol):
    """Translation of one API: requests to `ModelRequest`, and answers to bytes."""

    def read(self, body: dict[str, Any], unsupported: Literal["refuse", "ignore"]) -> ModelRequest:
        """Read a request.

        Raises:
            RefusedError: the request is not valid.
        """
        ...

    def answer(self, request: ModelRequest, answer: Answer) -> bytes:
        """Return the body of an answer that is not streamed."""
        ...

    def stream(self, request: ModelRequest, begun: Begun) -> EventStream:
        """Begin a streamed answer."""
        ...

    def error(self, refused: RefusedError) -> bytes:
        """Return the body of an error."""
        ...

    def error_event(self, refused: RefusedError) -> bytes:
        """Return the event that ends a stream with an error."""
        ...


KEEP_ALIVE = b": waiting\n\n"
"""A comment. Clients skip it, but it keeps proxies from closing the connection."""
BLANK = b"\n\n"
"""The same for Google's client, which tries to parse comments."""


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """Return the bytes of an event. Events of OpenAI's chat API have no name."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
