"""A gate that lets the work of several owners pass alternately."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairGate:
    """Lets at most `limit` coroutines be inside. Belongs to one event loop.

    If several owners wait, the owner with the fewest coroutines inside is next. So an owner waits for work of others
    that has started, but not for their queue.
    """

    def __init__(self, limit: int, spare: int = 0) -> None:
        """`spare`: places above the limit, for owners that have no coroutine inside."""
        self._limit = limit
        self._spare = spare
        self._inside: Counter[str] = Counter()
        self._total = 0
        self._last: str | None = None
        """Owner that entered last. It comes after others that have as many coroutines inside."""
        # The owner that entered longest ago comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def is_full(self) -> bool:
        """True if the next coroutine has to wait, except for spare places."""
        return self._total >= self._limit

    @asynccontextmanager
    async def enter(self, owner: str) -> AsyncIterator[None]:
        """Wait for a place, and keep it during the block. Coroutines of one owner enter in the order of their calls."""
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(entered)
        self._admit()
        try:
            await entered
            yield
        finally:
            if not entered.cancelled():
                self._count(owner, -1)
                self._admit()

    def _admit(self) -> None:
        while self._waiting:
            owner = min(self._waiting, key=lambda owner: (self._inside[owner], owner == self._last))
            if self._total >= self._limit + (0 if self._inside[owner] else self._spare):
                return
            queue = self._waiting.pop(owner)
            entered = queue.popleft()
            if queue:
                self._waiting[owner] = queue
            # A coroutine that was cancelled while it waited is skipped.
            if not entered.done():
                entered.set_result(None)
                self._last = owner
                self._count(owner, 1)

    def _count(self, owner: str, change: int) -> None:
        self._total += change
        self._inside[owner] += change
        if not self._inside[owner]:
            del self._inside[owner]
