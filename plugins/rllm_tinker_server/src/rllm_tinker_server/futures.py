"""Results by request id: pending, finished, and after a while discarded, so that memory stays bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.refusals import Gone


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of an HTTP response."""

    body: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class _Finished:
    answer: Answer
    since: float


class Futures:
    """To be used from one event loop."""

    def __init__(self, limits: TinkerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._pending: dict[str, asyncio.Future[None]] = {}
        # Dictionaries keep insertion order: the oldest come first.
        self._unretrieved: dict[str, _Finished] = {}
        self._retrieved: dict[str, _Finished] = {}
        self._bytes = 0

    @property
    def pending(self) -> int:
        return len(self._pending)

    def knows(self, request_id: str) -> bool:
        """True if a result with this id is pending or stored."""
        return request_id in self._pending or request_id in self._unretrieved or request_id in self._retrieved

    def open(self, request_id: str) -> None:
        """Mark the request as pending. A pending request is never discarded."""
        self._pending[request_id] = asyncio.get_running_loop().create_future()

    def finish(self, request_id: str, answer: Answer) -> None:
        """Store the answer and return it to all waiting requests."""
        waiting = self._pending.pop(request_id)
        self._unretrieved[request_id] = _Finished(answer, self._clock())
        self._bytes += len(answer.body)
        self._make_room()
        if not waiting.done():
            waiting.set_result(None)

    async def wait(self, request_id: str) -> Answer | None:
        """The result; None when it is still pending after `TinkerLimits.long_poll` seconds.

        Raises:
            Gone: nothing is known of that id.
        """
        waiting = self._pending.get(request_id)
        if waiting is not None:
            # Unlike wait_for, this does not cancel the future after the timeout, because others may wait for it too.
            done, _ = await asyncio.wait({waiting}, timeout=self._limits.long_poll)
            if not done or waiting.cancelled():
                return None
        return self._retrieve(request_id)

    def close(self) -> None:
        """Cancel all waiting requests, because the server stops."""
        for waiting in self._pending.values():
            waiting.cancel()

    def sweep(self) -> None:
        """Discard results older than their time limit."""
        now = self._clock()
        self._drop_older(self._retrieved, now - self._limits.keep_retrieved)
        self._drop_older(self._unretrieved, now - self._limits.keep_unretrieved)

    def _retrieve(self, request_id: str) -> Answer:
        finished = self._unretrieved.pop(request_id, None)
        if finished is not None:
            self._retrieved[request_id] = _Finished(finished.answer, self._clock())
            return finished.answer
        again = self._retrieved.get(request_id)
        if again is None:
            raise Gone(
                f"No result for request {request_id!r}: it is kept for {self._limits.keep_retrieved:g} s after it was "
                f"fetched and {self._limits.keep_unretrieved:g} s if it was not, and is lost when the server restarts. "
                "Send the request again; if the server has restarted, go on from the last checkpoint."
            )
        return again.answer

    def _make_room(self) -> None:
        while self._bytes > self._limits.max_result_bytes and len(self._retrieved) + len(self._unretrieved) > 1:
            self._drop_first(self._retrieved or self._unretrieved)

    def _drop_older(self, held: dict[str, _Finished], limit: float) -> None:
        while held and next(iter(held.values())).since < limit:
            self._drop_first(held)

    def _drop_first(self, held: dict[str, _Finished]) -> None:
        self._bytes -= len(held.pop(next(iter(held))).answer.body)
