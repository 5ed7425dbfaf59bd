"""Requests for gradients that wait for the training thread: it takes all of them at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field

from rllm_tinker_server.messages import ForwardBackward, ForwardBackwardResult
from rllm_tinker_server.turns import Answer

Compute = Callable[[Mapping[str, ForwardBackward]], Mapping[str, ForwardBackwardResult | Exception]]


@dataclass(frozen=True, eq=False)
class _Waiting:
    model_id: str
    parse: Callable[[], ForwardBackward]
    encode: Callable[[ForwardBackwardResult], Answer]
    answer: Future[Answer] = field(default_factory=Future)


LONGEST_WAIT = 0.02
"""Maximum seconds that a request waits for requests of other models. It never waits longer than the last pass took."""
LONG_PASS = 0.1
"""Seconds of a pass after which requests do not wait: passes of large requests are not shared."""
RECENT = 4
"""A request waits for models whose last gradient is at most this many such waits old: they are likely in a step."""


class Gathering:
    """Computes all requests that wait, one of each model, in one call. Belongs to one event loop.

    A request first waits a moment for models that train at the same time. Otherwise two clients would alternate: each
    would send its next request while the other client's request is computed.
    """

    def __init__(self, compute: Compute, executor: Executor) -> None:
        self._compute = compute
        self._executor = executor
        # One thread appends and another one removes, so each operation must be atomic.
        self._waiting: deque[_Waiting] = deque()
        self._arrival = asyncio.Event()
        self._ended: dict[str, float] = {}
        """Time of the last gradient of each model that has no request here."""
        self._longest_wait = 0.0
        self._serving: asyncio.Task[None] | None = None

    async def answer(
        self,
        model_id: str,
        parse: Callable[[], ForwardBackward],
        encode: Callable[[ForwardBackwardResult], Answer],
    ) -> Answer:
        """Return a request's answer. A model may have one request at a time. All arguments run on the thread.

        Raises:
            Exception: an error of this request.
        """
        waiting = _Waiting(model_id, parse, encode)
        self._waiting.append(waiting)
        self._ended.pop(model_id, None)
        self._arrival.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve(), name="gathering")
        try:
            return await asyncio.wrap_future(waiting.answer)
        finally:
            self._ended[model_id] = time.monotonic()

    async def _serve(self) -> None:
        """Execute requests until none waits."""
        try:
            while self._waiting:
                await self._wait_for_others()
                await asyncio.get_running_loop().run_in_executor(self._executor, self._execute)
        finally:
            self._serving = None

    async def _wait_for_others(self) -> None:
        """Wait until the models that train at the same time have requests, or until the time is over."""
        until = time.monotonic() + self._longest_wait
        while (left := until - time.monotonic()) > 0 and self._are_others_expected():
            self._arrival.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrival.wait(), left)

    def _are_others_expected(self) -> bool:
        oldest = time.monotonic() - RECENT * self._longest_wait
        self._ended = {model_id: ended for model_id, ended in self._ended.items() if ended > oldest}
        return bool(self._ended)

    def _execute(self) -> None:
        """Execute all requests that wait. Runs on the thread."""
        taken: dict[str, _Waiting] = {}
        requests: dict[str, ForwardBackward] = {}
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.answer.set_running_or_notify_cancel():
                taken[waiting.model_id] = waiting
        for model_id, waiting in taken.items():
            try:
                requests[model_id] = waiting.parse()
            except Exception as error:  # noqa: BLE001  (the client of this model receives it)
                waiting.answer.set_exception(error)
        if not requests:
            return
        start = time.monotonic()
        try:
            results = self._compute(requests)
        except Exception as error:  # noqa: BLE001  (all clients receive it)
            results = dict.fromkeys(requests, error)
        seconds = time.monotonic() - start
        self._longest_wait = 0.0 if seconds > LONG_PASS else min(LONGEST_WAIT, seconds)
        for model_id, result in results.items():
            try:
                if isinstance(result, Exception):
                    raise result
                taken[model_id].answer.set_result(taken[model_id].encode(result))
            except Exception as error:  # noqa: BLE001  (the client of this model receives it)
                taken[model_id].answer.set_exception(error)
