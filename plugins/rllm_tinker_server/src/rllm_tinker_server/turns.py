"""Results by request id, and the requests of one model, executed once each and in the order of their numbers.

Clients number the training requests of a model from 1 and send the parts of a large one all at once, its first part
last. They also send a request again when its answer was lost on the way.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rllm_tinker_server.fairness import SharedLimit
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import RequestError
from rllm_tinker_server.owners import Owner
from rllm_tinker_server.request_errors import BusyError, GoneError


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of an HTTP response."""

    body: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class _Pending:
    owner: Owner
    waiting: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _StoredResult:
    owner: Owner
    answer: Answer
    since: float


class Futures:
    """Results by request id. An owner finds only their own. To be used from one event loop."""

    def __init__(self, limits: TinkerLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._pending: dict[str, _Pending] = {}
        # Dictionaries keep insertion order: the oldest come first.
        self._unretrieved: dict[str, _StoredResult] = {}
        self._retrieved: dict[str, _StoredResult] = {}
        self._bytes: Counter[str] = Counter()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def knows(self, request_id: str, owner: Owner) -> bool:
        """True if a result with this id is pending or stored."""
        stores = (self._pending, self._unretrieved, self._retrieved)
        return any(request_id in store and store[request_id].owner == owner for store in stores)

    def open(self, request_id: str, owner: Owner) -> None:
        """Mark the request as pending. A pending request is never discarded."""
        self._pending[request_id] = _Pending(owner, asyncio.get_running_loop().create_future())

    def finish(self, request_id: str, answer: Answer) -> None:
        """Store the answer and return it to all waiting requests."""
        pending = self._pending.pop(request_id)
        self._unretrieved[request_id] = _StoredResult(pending.owner, answer, self._clock())
        self._bytes[pending.owner.name] += len(answer.body)
        self._make_room()
        if not pending.waiting.done():
            pending.waiting.set_result(None)

    async def wait(self, request_id: str, owner: Owner) -> Answer | None:
        """The result; None when it is still pending after `TinkerLimits.long_poll` seconds.

        Raises:
            GoneError: nothing is known of that id.
        """
        pending = self._pending.get(request_id)
        if pending is not None and pending.owner == owner:
            # Unlike wait_for, this does not cancel the future after the timeout, because others may wait for it too.
            done, _ = await asyncio.wait({pending.waiting}, timeout=self._limits.long_poll)
            if not done or pending.waiting.cancelled():
                return None
        return self._retrieve(request_id, owner)

    def close(self) -> None:
        """Cancel all waiting requests, because the server stops."""
        for pending in self._pending.values():
            pending.waiting.cancel()

    def sweep(self) -> None:
        """Discard results older than their time limit."""
        now = self._clock()
        self._drop_older(self._retrieved, now - self._limits.keep_retrieved)
        self._drop_older(self._unretrieved, now - self._limits.keep_unretrieved)

    def _retrieve(self, request_id: str, owner: Owner) -> Answer:
        finished = self._unretrieved.get(request_id)
        if finished is not None and finished.owner == owner:
            self._retrieved[request_id] = _StoredResult(owner, finished.answer, self._clock())
            del self._unretrieved[request_id]
            return finished.answer
        again = self._retrieved.get(request_id)
        if again is None or again.owner != owner:
            raise GoneError(
                f"No result for request {request_id!r}: it is kept for {self._limits.keep_retrieved:g} s after it was "
                f"fetched and {self._limits.keep_unretrieved:g} s if it was not, and is lost when the server restarts. "
                "Send the request again. If the server has restarted, continue from the last checkpoint."
            )
        return again.answer

    def _make_room(self) -> None:
        """Drop results of the owner with the most bytes, so that no owner's results make others' disappear."""
        while self._bytes.total() > self._limits.max_result_bytes and len(self._retrieved) + len(self._unretrieved) > 1:
            ((largest, _),) = self._bytes.most_common(1)
            stores = (self._retrieved, self._unretrieved)
            own = ((held, key) for held in stores for key, each in held.items() if each.owner.name == largest)
            self._drop(*next(own))

    def _drop_older(self, held: dict[str, _StoredResult], limit: float) -> None:
        while held and next(iter(held.values())).since < limit:
            self._drop(held, next(iter(held)))

    def _drop(self, held: dict[str, _StoredResult], request_id: str) -> None:
        dropped = held.pop(request_id)
        self._bytes[dropped.owner.name] -= len(dropped.answer.body)
        if not self._bytes[dropped.owner.name]:
            del self._bytes[dropped.owner.name]


Execute = Callable[[], Awaitable[Answer]]
"""A function that executes a request. It raises nothing, because failures are answers too."""
Failure = Callable[[str], Answer]
"""A function that makes the answer about a failure."""


@dataclass(frozen=True, slots=True)
class _Turn:
    execute: Execute
    size: int


class Turns:
    """Numbered requests of one model, which run in order. The model's creation is turn 0."""

    def __init__(
        self,
        model_id: str,
        owner: Owner,
        futures: Futures,
        backlog: SharedLimit,
        limits: TinkerLimits,
        failure: Failure,
    ) -> None:
        """`backlog` counts the bytes of requests that wait for their turn, of all models."""
        self.model_id = model_id
        self._owner = owner
        self._futures = futures
        self._backlog = backlog
        self._limits = limits
        self._failure = failure
        self._next = 0
        """The next number to start; all below have been started or given up."""
        self._waiting: dict[int, _Turn] = {}
        self._kinds: dict[int, str | None] = {}
        """Kinds of the last requests by number. None if a request never arrived and the server gave up on it."""
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return self._task is None and not self._waiting

    def request_id(self, number: int) -> str:
        return f"{self.model_id}:{number}"

    def submit(self, number: int, kind: str, size: int, execute: Execute) -> str:
        """Queue a request of `size` bytes and return its id. One that was queued before is not queued again.

        Raises:
            RequestError: the number was used by another kind of request, was given up, or is far ahead.
            BusyError: too many bytes are waiting.
        """
        if number < self._next or number in self._waiting:
            self._check_repetition(number, kind)
            return self.request_id(number)
        if number > self._next + self._limits.max_turns_ahead:
            raise RequestError(
                f"Request {number} of {self.model_id} is far ahead of request {self._next}, the next to execute. "
                "Number requests one by one."
            )
        # The next request is taken in any case: others may wait for it.
        if number != self._next and not self._backlog.has_room(self._owner.name, size):
            raise BusyError("Too many training requests are waiting for their turn. Send this one again later.")
        self._futures.open(self.request_id(number), self._owner)
        self._waiting[number] = _Turn(execute, size)
        self._backlog.add(self._owner.name, size)
        self._remember(number, kind)
        self._start_next()
        return self.request_id(number)

    def close(self, why: str) -> None:
        """Fail all waiting requests. The running requests end by themselves."""
        self._cancel_deadline()
        for number in sorted(self._waiting):
            self._fail(number, why)

    def _check_repetition(self, number: int, kind: str) -> None:
        before = self._kinds.get(number, kind)
        if before is None:
            raise RequestError(
                f"Request {number} of {self.model_id} came over {self._limits.turn_deadline:g} s after later ones. "
                "Those have failed meanwhile. Continue from the last checkpoint with a new training client."
            )
        if before != kind:
            raise RequestError(
                f"Request {number} of {self.model_id} was {before} and is now {kind}. Use every number once. Two "
                "programs cannot train the same model."
            )

    def _remember(self, number: int, kind: str | None) -> None:
        self._kinds[number] = kind
        if len(self._kinds) > self._limits.max_remembered_turns:
            del self._kinds[next(iter(self._kinds))]

    def _start_next(self) -> None:
        """Execute what has its turn; when that is missing, wait for it until the deadline."""
        if self._task is not None:
            return
        if self._next in self._waiting:
            self._cancel_deadline()
            self._task = asyncio.create_task(self._execute(), name=f"turns of {self.model_id}")
        elif self._waiting and self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self._limits.turn_deadline, self._give_up)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    async def _execute(self) -> None:
        try:
            while (turn := self._waiting.pop(self._next, None)) is not None:
                number, self._next = self._next, self._next + 1
                answer = await turn.execute()
                self._backlog.remove(self._owner.name, turn.size)
                self._futures.finish(self.request_id(number), answer)
        finally:
            self._task = None
        self._start_next()

    def _give_up(self) -> None:
        self._deadline = None
        missing, held = self._next, sorted(self._waiting)
        for number in sorted(set(range(missing, held[-1])) - set(held)):
            self._remember(number, None)
        self._next = held[-1] + 1
        for number in held:
            self._fail(
                number,
                f"Request {number} of {self.model_id} waited {self._limits.turn_deadline:g} s for request {missing}, "
                "which never came: the client lost it, or this server refused it. See the first error of the program.",
            )

    def _fail(self, number: int, why: str) -> None:
        self._backlog.remove(self._owner.name, self._waiting.pop(number).size)
        self._futures.finish(self.request_id(number), self._failure(why))
