"""Requests and responses, independent of the client's API, and the interface of an API."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from rllm_core.contracts.renderer import Renderer, StreamingRenderer
from rllm_core.data.messages import Message, Tool
from rllm_core.rollout.template_renderer import before_any
from rllm_gateway.apis.fields import RefusedError
from rllm_gateway.apis.structured import ResponseFormat
from rllm_gateway.calls import CallRow
from rllm_gateway.client import DEFAULT_ROLE

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


@dataclass(frozen=True)
class FinalText:
    """The text of a choice that later tokens cannot change."""

    reasoning: str = ""
    content: str = ""
    """Empty while `reasoning` can still grow."""


REASONING = "reasoning_content"
"""Key of a message's reasoning. Clients may omit it when they repeat a message."""


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
    digest: bytes = b""
    """Digest of the prompt. `LiveSession.locate` sets this field and the next ones."""
    parent: CallRow | None = None
    """The session's call that the request continues. None if it continues no call."""
    sampled: Mapping[int, CallRow] = field(default_factory=dict)
    """Index of a message -> the session's call with this response."""
    new_messages: Sequence[Message] = ()
    """Messages after the parent's response."""
    foreign: int = 0
    """Number of assistant messages that were not sampled in this session, or not at this position."""

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


LOOKS = 32
"""A choice with n tokens is decoded again after n / 32 more tokens. So the total cost is linear in its length, about
32 times the length, not quadratic."""


class ClientGoneError(Exception):
    """The client disconnected."""


class PendingResponse:
    """The response to one request while it is sampled, stored and sent. Several clients may wait for it."""

    task: asyncio.Task[None]
    """Samples and stores the choices."""
    id: str
    """Id of the request, hexadecimal digits. This field and the next ones are set before the first token is sampled."""
    created: int
    """Time of the request, as Unix time in seconds."""
    prompt_tokens: int
    cached_tokens: int
    """Number of prompt tokens that are part of the prompt or the response of an earlier call of the session."""

    def __init__(self, request: ModelRequest, renderer: Renderer) -> None:
        self.choices: tuple[Choice, ...] = ()
        """All choices of the response. Empty until they are stored."""
        self.waiters = 0
        self.storing = False
        """True if its calls are being stored, so that it cannot be cancelled any more."""
        self.delivered = False
        self.news = asyncio.Event()
        """Event that is set when there are more tokens. It is then replaced by a new event."""
        self.is_streamed = request.stream and isinstance(renderer, StreamingRenderer)
        """True if clients get the text during sampling."""
        self._request = request
        self._renderer = renderer
        self._prompt_ids: NDArray[np.int32]
        self._tokens: list[list[int]] = [[] for _ in range(request.n)]

    @property
    def tokens(self) -> int:
        """Sampled tokens of all choices."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def is_failed(self) -> bool:
        """True if the task has ended without a response."""
        return self.task.done() and not self.choices

    def begin(self, id: str, created: int, prompt_ids: NDArray[np.int32], cached_tokens: int) -> None:
        """Set the data that is available before the first token."""
        self.id, self.created, self.cached_tokens = id, created, cached_tokens
        self.prompt_tokens, self._prompt_ids = len(prompt_ids), prompt_ids

    def add_tokens(self, index: int, ids: NDArray[np.int32]) -> None:
        """Add the next tokens of a choice, (n,) int32."""
        self._tokens[index] += ids.tolist()
        news, self.news = self.news, asyncio.Event()
        news.set()

    def finish(self, choices: Sequence[Choice]) -> None:
        """Set all choices. The request and the tokens are dropped, because sessions keep their responses."""
        self.choices = tuple(choices)
        del self._request, self._prompt_ids, self._tokens

    def read_final_text(self, looked: dict[int, int]) -> dict[int, FinalText]:
        """Return the final text of each choice that has grown, by index. The response must not be finished.

        Args:
            looked: number of tokens of each choice that the caller has seen. It is brought up to date.
        """
        found = dict[int, FinalText]()
        for index, tokens in enumerate(self._tokens):
            seen = looked.get(index, 0)
            if len(tokens) > seen + seen // LOOKS:
                looked[index] = len(tokens)
                found[index] = self._read_final_text(np.array(tokens, np.int32))
        return found

    def _read_final_text(self, ids: NDArray[np.int32]) -> FinalText:
        """Return the final part of the result of `choice_of`."""
        request = self._request
        assert isinstance(self._renderer, StreamingRenderer)
        response = self._renderer.parse_partial(self._prompt_ids, ids, request.tools)
        if request.is_plain:
            return FinalText(content=before_any(response.text, request.stop))
        if response.reasoning:
            return FinalText(reasoning=response.reasoning)
        # JSON that follows a schema can become a tool call in the end, which is not content.
        may_call = request.response_format is not None and request.tools
        return FinalText(content="" if may_call else before_any(response.content, request.stop))

    def check(self) -> None:
        """Raise the error of a response that has failed.

        Raises:
            RefusedError: the session was closed meanwhile, or the request was rejected.
        """
        if self.task.cancelled():
            raise RefusedError(
                409, "conflict", "The session was closed while its model answered.", code="session_closed"
            )
        self.task.result()

    @contextmanager
    def count_waiter(self) -> Iterator[None]:
        """Count a waiting client. If the last one leaves, cancel sampling, unless the calls are being stored."""
        self.waiters += 1
        try:
            yield
        finally:
            self.waiters -= 1
            if not self.waiters and not self.storing:
                self.task.cancel()

    async def wait(
        self, gone: asyncio.Task[None], within: float | None = None, news: asyncio.Event | None = None
    ) -> bool:
        """Wait for the response, for `within` seconds, or until `news` is set. Return True if it is complete.

        Raises:
            ClientGoneError: the client disconnected before.
        """
        has_news = None if news is None else asyncio.create_task(news.wait())
        try:
            ends = {self.task, gone} if has_news is None else {self.task, gone, has_news}
            done, _ = await asyncio.wait(ends, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if has_news is not None:
                has_news.cancel()
        if gone in done and self.task not in done:
            raise ClientGoneError
        return self.task in done


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
