"""The requests of one model, executed once each and in the order of their numbers, in whatever order they arrive.

Clients number the training requests of a model from 1 and send the parts of a large one all at once, its first part
last. They also send a request again when its answer was lost on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rllm_tinker_server.futures import Answer, Futures
from rllm_tinker_server.limits import TinkerLimits
from rllm_tinker_server.messages import RequestRefused
from rllm_tinker_server.refusals import Busy

Work = Callable[[], Awaitable[Answer]]
"""Executes a request. Failures are answers too: it raises nothing."""
Failure = Callable[[str], Answer]
"""The answer that tells a client of a failure."""


@dataclass(slots=True)
class Backlog:
    """Bytes of requests that wait for their turn; shared by all models."""

    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Turn:
    work: Work
    size: int


class Turns:
    """Numbered requests of one model, which run in order. The model's creation is turn 0."""

    def __init__(
        self, model_id: str, futures: Futures, backlog: Backlog, limits: TinkerLimits, failure: Failure
    ) -> None:
        self.model_id = model_id
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

    def submit(self, number: int, kind: str, size: int, work: Work) -> str:
        """Queue a request of `size` bytes and return its id. One that was queued before is not queued again.

        Raises:
            RequestRefused: the number was used by another kind of request, was given up, or is far ahead.
            Busy: too many bytes are waiting.
        """
        if number < self._next or number in self._waiting:
            self._check_repeated(number, kind)
            return self.request_id(number)
        if number > self._next + self._limits.max_turns_ahead:
            raise RequestRefused(
                f"Request {number} of {self.model_id} is far ahead of request {self._next}, the next to execute. "
                "Number requests one by one."
            )
        # The next request is taken in any case: others may wait for it.
        if number != self._next and self._backlog.waiting_bytes + size > self._limits.max_waiting_bytes:
            raise Busy("Too many training requests are waiting for their turn; send this one again later.")
        self._futures.open(self.request_id(number))
        self._waiting[number] = _Turn(work, size)
        self._backlog.waiting_bytes += size
        self._remember(number, kind)
        self._go_on()
        return self.request_id(number)

    def close(self, why: str) -> None:
        """Fail whatever waits; what is being executed ends by itself."""
        self._cancel_deadline()
        for number in sorted(self._waiting):
            self._fail(number, why)

    def _check_repeated(self, number: int, kind: str) -> None:
        before = self._kinds.get(number, kind)
        if before is None:
            raise RequestRefused(
                f"Request {number} of {self.model_id} came over {self._limits.turn_deadline:g} s after later ones; "
                "those have failed meanwhile. Go on from the last checkpoint with a new training client."
            )
        if before != kind:
            raise RequestRefused(
                f"Request {number} of {self.model_id} was {before} and is now {kind}. Use every number once; two "
                "programs cannot train the same model."
            )

    def _remember(self, number: int, kind: str | None) -> None:
        self._kinds[number] = kind
        if len(self._kinds) > self._limits.max_remembered_turns:
            del self._kinds[next(iter(self._kinds))]

    def _go_on(self) -> None:
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
                answer = await turn.work()
                self._backlog.waiting_bytes -= turn.size
                self._futures.finish(self.request_id(number), answer)
        finally:
            self._task = None
        self._go_on()

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
        self._backlog.waiting_bytes -= self._waiting.pop(number).size
        self._futures.finish(self.request_id(number), self._failure(why))
