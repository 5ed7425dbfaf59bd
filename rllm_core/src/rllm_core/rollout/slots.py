"""Slots: the limit of concurrent rollouts, shared by all requests of a run."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from dataclasses import dataclass


class Slots:
    """A fixed number of slots. Waiting rollouts get them by priority, then in the order in which they started to wait.

    The priority is the number of the rollout batch. Older batches go first, because training waits for them.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def reserve_slot(self, priority: int) -> _Reservation:
        """Return a context manager for ``async with`` that occupies a slot. Lower priorities get theirs first."""
        return _Reservation(self, priority)

    async def acquire(self, priority: int) -> None:
        """Wait for a slot."""
        if self._free:
            self._free -= 1
            return
        handed = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), handed))
        try:
            await handed
        except asyncio.CancelledError:
            if not handed.cancelled():
                self.release()  # the slot was assigned while the waiter was cancelled
            raise

    def release(self) -> None:
        """Give the slot to the first rollout that still waits."""
        while self._waiting:
            *_, handed = heapq.heappop(self._waiting)
            if not handed.done():
                handed.set_result(None)
                return
        self._free += 1


@dataclass(frozen=True, slots=True)
class _Reservation:
    slots: Slots
    priority: int

    async def __aenter__(self) -> None:
        await self.slots.acquire(self.priority)

    async def __aexit__(self, *_: object) -> None:
        self.slots.release()
