"""Requests of the engine: the rule that ends a completion, a request with its completion, and the waiting requests."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.grammars import Grammar
from rllm_core.contracts.engine import Completion, FinishReason, SamplingParams, TopTokens
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import RolloutError
from rllm_local.pages import Session, prefix_keys

Stops = Callable[[NDArray[np.int32]], bool]
"""A function that is called after every token. It returns True if the response, (n,) int32 with n >= 1, ends there."""
SLACK = 8
"""Additional tokens to decode beyond the longest stop string. A string can end inside a token, and the first decoded
character can be incomplete."""


def stop_rule(text_of: Callable[[list[int]], str], stop_ids: Collection[int], stop_strings: Collection[str]) -> Stops:
    """Return the rule for a response that ends with one of `stop_ids`, or whose text contains a stop string.

    Args:
        text_of: function that decodes tokens.
        stop_ids: tokens that end a response.
        stop_strings: strings that end a response. An empty collection needs no decoding.
    """

    def at_token(sampled: NDArray[np.int32]) -> bool:
        return int(sampled[-1]) in stop_ids

    if not stop_strings:
        return at_token
    # The rule is called after every token, so a new stop string ends with the last token.
    window = max(len(each.encode()) for each in stop_strings) + SLACK

    def at_token_or_text(sampled: NDArray[np.int32]) -> bool:
        if at_token(sampled):
            return True
        end = text_of(sampled[-window:].tolist())
        return any(each in end for each in stop_strings)

    return at_token_or_text


@dataclass(eq=False, slots=True)
class Request:
    """A prompt and the tokens that were sampled after it."""

    buffer: NDArray[np.int32]
    """The prompt, the sampled tokens, and room for more tokens."""
    prompt_length: int
    sampling: SamplingParams
    session_name: str
    future: asyncio.Future[Completion]
    stops: Stops
    grammar: Grammar | None = None
    client: str = ""
    session: Session | None = None
    logprobs: list[float] = field(default_factory=list)
    _top_ids: list[NDArray[np.int64]] = field(default_factory=list)
    _top_logprobs: list[NDArray[np.float32]] = field(default_factory=list)
    _version_starts: list[tuple[int, int]] = field(default_factory=list)
    """Weight versions that sampled tokens so far, oldest first, each with the number of tokens sampled before it."""
    keys: list[int] = field(default_factory=list)
    """Keys of `tokens`, as of the last call of `prefix_keys`."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and sampled tokens so far. A view."""
        return self.buffer[: self.prompt_length + len(self.logprobs)]

    @property
    def sampled_ids(self) -> NDArray[np.int32]:
        """Sampled tokens so far. A view."""
        return self.tokens[self.prompt_length :]

    def prefix_keys(self) -> list[int]:
        """Return the keys of `tokens`, see `pages.prefix_keys`."""
        self.keys = prefix_keys(self.tokens, self.keys)
        return self.keys

    def append(self, token: int, logprob: float, version: int) -> None:
        self.buffer[self.prompt_length + len(self.logprobs)] = token
        if not self._version_starts or self._version_starts[-1][0] != version:
            self._version_starts.append((version, len(self.logprobs)))
        self.logprobs.append(logprob)
        if self.sampling.on_tokens is not None:
            self.sampling.on_tokens(np.array([token], np.int32))

    def note_top(self, ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """Store the likeliest tokens, (k,), at the next token's position, as many as the request needs."""
        if most := self.sampling.top_logprobs:
            self._top_ids.append(ids[:most])
            self._top_logprobs.append(logprobs[:most])

    def finish(self, reason: FinishReason) -> None:
        """Return the completion to the caller, if the caller still waits."""
        if self.future.done():
            return
        self.future.set_result(
            Completion(
                token_ids=self.sampled_ids.copy(),
                logprobs=np.array(self.logprobs, np.float32),
                finish_reason=reason,
                weight_version=self._version_starts[0][0],
                version_spans=self._version_spans() if len(self._version_starts) > 1 else (),
                top=self._top(),
            )
        )

    def _top(self) -> TopTokens | None:
        if not self._top_ids:
            return None
        return TopTokens(np.stack(self._top_ids).astype(np.int32), np.stack(self._top_logprobs))

    def _version_spans(self) -> tuple[VersionSpan, ...]:
        ends = [*(start for _, start in self._version_starts[1:]), len(self.logprobs)]
        return tuple(
            VersionSpan(version, end - start) for (version, start), end in zip(self._version_starts, ends, strict=True)
        )

    def fail(self, error: Exception, what: str) -> None:
        """Raise an error in the caller, if the caller still waits."""
        if self.future.done():
            return
        failure = RolloutError("worker-failed", f"{what}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        self.future.set_exception(failure)


class WaitingRequests:
    """A queue of requests for each client. The client with the fewest running requests is next."""

    def __init__(self) -> None:
        # The client whose request was taken longest ago comes first.
        self._queues: dict[str, deque[Request]] = {}
        self._last: str | None = None
        """Client whose request was taken last. It comes after others that have as many running requests."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Request]:
        return (request for queue in self._queues.values() for request in queue)

    def add(self, request: Request) -> None:
        self._queues.setdefault(request.client, deque()).append(request)

    def put_back(self, requests: Sequence[Request]) -> None:
        """Put requests before those that wait. They keep their order."""
        for request in reversed(requests):
            self._queues.setdefault(request.client, deque()).appendleft(request)

    def take(self, running: Counter[str]) -> Request:
        """Remove and return the next request. `running` has the number of running requests of each client."""
        client = min(self._queues, key=lambda client: (running[client], client == self._last))
        self._last = client
        queue = self._queues.pop(client)
        request = queue.popleft()
        if queue:
            self._queues[client] = queue
        return request

    def without_running(self, running: Counter[str]) -> list[str]:
        """Return the clients that wait and have no running request."""
        return [client for client in self._queues if not running[client]]
