"""Waits for Ray. Every call has a time limit, and a call that exceeds it is stopped."""

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
"""Seconds between checks that Ray still runs. Without its processes, Ray waits a minute and then stops this process."""


class Driver:
    """Runs verl's blocking calls one at a time on a separate thread, so that the event loop stays free.

    A thread cannot be interrupted. So if a call exceeds its time limit, `abandon` kills the processes for which it
    waits, and Ray then raises an error in the call. If the call still does not end, its thread is abandoned. An
    abandoned thread does not prevent the program from ending.
    """

    def __init__(self, processes: Callable[[], Sequence[Process]], abandon: Callable[[], None]) -> None:
        """Create the thread. No call runs yet.

        Args:
            processes: returns the processes whose logs an error shows.
            abandon: stops the processes for which calls wait.
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
            call: a blocking function.
            doing: description of the call for errors, for example "updating the policy".
            seconds: time limit.
            key: config key of the time limit.
            find_end: returns the name of a Ray process that has ended, like `dead_daemon`. Pass a different function
                for a call that stops Ray itself.

        Raises:
            RllmError: the call failed or exceeded its time limit, or Ray stopped during the call.
        """
        async with self._one_at_a_time:
            future = self._threads[-1].begin(call)
            gone = await _wait(future, seconds, find_end)
            if not future.done():
                late = overdue(doing, seconds, key, self._processes())
                error = late if gone is None else ray_is_gone(gone, doing)
                self._abandon()
                # The call may still block, so later calls get a new thread.
                self._threads.append(_Thread())
                raise error
        try:
            return future.result()
        except Exception as error:
            raise as_backend_error(error, doing, self._processes()) from error

    async def free(self, end_waits: Callable[[], None], seconds: float) -> None:
        """Wait until an abandoned call ends.

        Args:
            end_waits: stops the processes for which such a call waits. It is called repeatedly, because the call may
                have started new ones.
            seconds: time limit.
        """
        end = asyncio.get_running_loop().time() + seconds
        while self.is_busy and asyncio.get_running_loop().time() < end:
            end_waits()
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def is_busy(self) -> bool:
        """True if an abandoned call is still running."""
        return any(thread.is_busy for thread in self._threads)

    def close(self) -> None:
        """Accept no more calls."""
        for thread in self._threads:
            thread.end()


async def _wait(future: asyncio.Future[Any], seconds: float, find_end: Callable[[], str | None]) -> str | None:
    """Wait until the call is done, its time is over, or a Ray process has ended. Return the result of `find_end`."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        done, _ = await asyncio.wait([future], timeout=min(LOOK_SECONDS, left))
        if done:
            return None
        if (gone := find_end()) is not None:
            return gone
    return None


def take_back_sigterm() -> None:
    """Restore the SIGTERM handler from before `ray.init`. Ray's handler aborts the program after three seconds."""
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


class _Thread:
    """A thread that makes calls one after the other. It lives as long as the run and ends with the program.

    It must live that long because the processes of a new Ray cluster stop when their starting thread ends.
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
                future.exception()  # mark it as retrieved, because an abandoned call's error is never read

        def work() -> None:
            result, failure = None, None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  (the caller receives it)
                failure = error
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so no caller is waiting
                loop.call_soon_threadsafe(deliver, result, failure)

        self.is_busy = True
        self._calls.put(work)
        return future

    def end(self) -> None:
        """Stop the thread after its last call."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            self.is_busy = False
