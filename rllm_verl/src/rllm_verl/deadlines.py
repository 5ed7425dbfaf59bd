"""Waiting for Ray: every call has a deadline, and what outlives it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rllm_verl.failures import as_backend_error, overdue, ray_is_gone
from rllm_verl.processes import Process, dead_daemon

T = TypeVar("T")
LOOK_SECONDS = 0.5
"""How often a wait looks whether Ray is still there. Without its processes Ray waits for a minute, then ends us."""


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

    async def run(
        self,
        call: Callable[[], T],
        *,
        doing: str,
        seconds: float,
        key: str,
        find_end: Callable[[], str | None] = dead_daemon,
    ) -> T:
        """Run a call to its end.

        Args:
            call: blocks.
            doing: what it does, for errors: "updating the policy".
            seconds: its deadline.
            key: the config key of the deadline.
            find_end: says what of Ray has ended, as `dead_daemon` does; a call that ends Ray itself has another one.

        Raises:
            RllmError: it failed, is not done in time, or Ray ended under it.
        """
        async with self._one_at_a_time:
            future = self._threads[-1].begin(call)
            gone = await _wait(future, seconds, find_end)
            if not future.done():
                late = overdue(doing, seconds, key, self._processes())
                error = late if gone is None else ray_is_gone(gone, doing)
                self._abandon()
                # Perhaps it is free now. If not, what comes next must not wait behind it.
                self._threads.append(_Thread())
                raise error
        try:
            return future.result()
        except Exception as error:
            raise as_backend_error(error, doing, self._processes()) from error

    async def free(self, end_waits: Callable[[], None], seconds: float) -> None:
        """Let a call end that nobody waits for any more.

        Args:
            end_waits: ends what such a call waits for. Called again and again: it may have begun something else.
            seconds: at most.
        """
        end = asyncio.get_running_loop().time() + seconds
        while self.is_busy and asyncio.get_running_loop().time() < end:
            end_waits()
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def is_busy(self) -> bool:
        """Whether a call that somebody gave up waiting for has not ended."""
        return any(thread.is_busy for thread in self._threads)

    def close(self) -> None:
        """Begin nothing more."""
        for thread in self._threads:
            thread.end()


async def _wait(future: asyncio.Future[Any], seconds: float, find_end: Callable[[], str | None]) -> str | None:
    """Wait until it is done or late, or until a process of Ray has ended; returns what `find_end` says of it."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        done, _ = await asyncio.wait([future], timeout=min(LOOK_SECONDS, left))
        if done:
            return None
        if (gone := find_end()) is not None:
            return gone
    return None


def take_back_sigterm() -> None:
    """Let SIGTERM do what it did before `ray.init`, whose own handler aborts the program three seconds later."""
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


class _Thread:
    """Makes calls one after the other, on a thread that lives as long as the run and ends with the program.

    As long as the run: the processes of a cluster that Ray starts here die with the thread that started them.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.is_busy = False
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

        self.is_busy = True
        self._calls.put(work)
        return future

    def end(self) -> None:
        """After the last call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self.is_busy = False
