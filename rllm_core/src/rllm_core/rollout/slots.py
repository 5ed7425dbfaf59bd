"""Slots: how many attempts are under way at once, over all orders of a run."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A fixed number of slots. Who waits gets one by priority, then in the order of asking.

    Priority is the number of the round: older rounds go first, as training waits for them.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def held(self, priority: int) -> AsyncIterator[None]:
        """Hold a slot; lower priorities get theirs first."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: int) -> None:
        if self._free:
            self._free -= 1
            return
        handed = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), handed))
        try:
            await handed
        except asyncio.CancelledError:
            if not handed.cancelled():
                self._release()  # it came as the waiter was cancelled
            raise

    def _release(self) -> None:
        """Hand the slot to the first who still waits."""
        while self._waiting:
            *_, handed = heapq.heappop(self._waiting)
            if not handed.done():
                handed.set_result(None)
                return
        self._free += 1
