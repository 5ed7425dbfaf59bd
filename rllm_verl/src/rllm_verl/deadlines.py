"""Waiting for Ray: every call has a deadline, and what outlives it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from rllm_verl.failures import as_backend_error, overdue
from rllm_verl.processes import Process

T = TypeVar("T")


class Driver:
    """Runs verl's blocking calls one at a time on a thread of its own, so that the event loop stays free.

    A thread cannot be interrupted. A call that outlives its deadline is therefore freed from outside: `abandon` kills
    the processes that it waits for, and Ray then raises in it. Where even that does not free it the thread is left
    behind, and does not keep the program from ending.
    """

    def __init__(self, processes: Callable[[], Sequence[Process]], abandon: Callable[[], None]) -> None:
        """Make one; nothing runs yet.

        Args:
            processes: whose logs an error shows.
            abandon: ends what calls wait for.
        """
        self._processes = processes
        self._abandon = abandon
        self._one_at_a_time = asyncio.Lock()
        self._threads = [_Thread()]

    async def run(self, call: Callable[[], T], *, doing: str, seconds: float, key: str) -> T:
        """Run a call to its end.

        Args:
            call: blocks.
            doing: what it does, for errors: "updating the policy".
            seconds: its deadline.
            key: the config key of the deadline.

        Raises:
            RllmError: it failed, or is not done in time.
        """
        async with self._one_at_a_time:
            future = self._threads[-1].begin(call)
            done, _ = await asyncio.wait([future], timeout=seconds)
            if not done:
                error = overdue(doing, seconds, key, self._processes())
                self._abandon()
                # Perhaps it is free now. If not, what comes next must not wait behind it.
                self._threads.append(_Thread())
                raise error
        try:
            return future.result()
        except Exception as error:
            raise as_backend_error(error, doing, self._processes()) from error

    def close(self) -> None:
        """Begin nothing more."""
        for thread in self._threads:
            thread.end()


class _Thread:
    """Makes calls one after the other, on a thread that lives as long as the run and ends with the program.

    As long as the run: the processes of a cluster that Ray starts here die with the thread that started them.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="rllm-verl", daemon=True).start()

    def begin(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)
                future.exception()  # whoever gave up on it does not fetch it

        def work() -> None:
            result, failure = None, None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  (it belongs to who waits)
                failure = error
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                loop.call_soon_threadsafe(deliver, result, failure)

        self._calls.put(work)
        return future

    def end(self) -> None:
        """After the last call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
