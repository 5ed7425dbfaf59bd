"""Waiting for Ray: every call has a deadline, and what outlives it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rllm_verl.failures import as_backend_error, overdue
from rllm_verl.processes import Process

T = TypeVar("T")


class Driver:
    """Runs verl's blocking calls one at a time on a thread of its own, so that the event loop stays free.

    A thread cannot be interrupted. A call that outlives its deadline is therefore freed from outside: `abandon` kills
    the processes that it waits for, and Ray then raises in it.
    """

    def __init__(self, processes: Callable[[], Sequence[Process]], abandon: Callable[[], None]) -> None:
        """Make one; nothing runs yet.

        Args:
            processes: whose logs an error shows.
            abandon: ends what calls wait for.
        """
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rllm-verl")
        self._processes = processes
        self._abandon = abandon

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
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        done, _ = await asyncio.wait([future], timeout=seconds)
        if not done:
            error = overdue(doing, seconds, key, self._processes())
            self._abandon()
            # Its result is of no interest, and an exception that nobody fetches would be reported.
            future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise error
        try:
            return future.result()
        except Exception as error:
            raise as_backend_error(error, doing, self._processes()) from error

    def close(self) -> None:
        """Begin nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)
