"""The interface of an API: it reads requests, and writes responses, events and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson

from rllm_gateway.exchange import Choice, FinalText, ModelRequest, PendingResponse
from rllm_gateway.fields import RefusedError


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


class EventStream(Protocol):
    """The server-sent events of one streamed response. Its methods return their bytes, in the order of the events."""

    def add(self, index: int, final: FinalText) -> bytes:
        """Return the events for the new text of a choice; empty if nothing is new.

        Args:
            index: index of the choice.
            final: the choice's text so far. It begins with the text of the previous call of `add`.
        """
        ...

    def end(self, response: PendingResponse) -> bytes:
        """Return the events for all text that was not sent yet, and the events that end the stream.

        Raises:
            RefusedError: a choice does not begin with the text that was sent.
        """
        ...


class Api(Protocol):
    """Translation of one API: requests to `ModelRequest`, and responses to bytes."""

    def read(self, body: dict[str, Any], unsupported: Literal["refuse", "ignore"]) -> ModelRequest:
        """Read a request.

        Raises:
            RefusedError: the request is not valid.
        """
        ...

    def answer(self, request: ModelRequest, response: PendingResponse) -> bytes:
        """Return the body of a response that is not streamed."""
        ...

    def stream(self, request: ModelRequest, response: PendingResponse) -> EventStream:
        """Begin a streamed response."""
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
