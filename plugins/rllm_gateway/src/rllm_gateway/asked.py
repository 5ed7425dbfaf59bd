"""What a client asks for, whichever API it speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rllm_core.data.messages import Message, Tool
from rllm_gateway.answer import Answer
from rllm_gateway.refusals import RefusedError
from rllm_gateway.structured import Wanted

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


class Api(Protocol):
    """One API: pure translation, bytes out."""

    def read(self, body: dict[str, Any], unsupported: Literal["refuse", "ignore"]) -> Asked:
        """Raises RefusedError."""
        ...

    def answer(self, asked: Asked, answer: Answer) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def events(self, asked: Asked, answer: Answer) -> bytes:
        """All server-sent events of a streamed answer."""
        ...

    def error(self, refused: RefusedError) -> bytes:
        """The body of an error."""
        ...

    def error_event(self, refused: RefusedError) -> bytes:
        """The event that ends a stream which has begun."""
        ...
