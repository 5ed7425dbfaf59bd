"""What a client asks for, whichever API it speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rllm_core.data.messages import Message, Tool
from rllm_gateway.answer import Answer, Begun
from rllm_gateway.refusals import RefusedError
from rllm_gateway.structured import Wanted
from rllm_gateway.told import Settled

MOST_CHOICES = 128
MOST_TOP = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A request, translated."""

    messages: Sequence[Message]
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
