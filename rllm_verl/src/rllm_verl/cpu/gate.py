"""Who may sample now: requests pass a gate, which is shut while weights change and after verl's abort."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Counts the requests inside. Belongs to one event loop."""

    def __init__(self) -> None:
        self.aborting = False
        """Whether requests inside shall end with the token being sampled."""
        self._rejecting = False
        self._shut_by = 0
        self._inside = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[bool]:
        """Wait until the gate is open, and be inside for the length of the block. Yields False to who must go away."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._shut_by == 0 or self._rejecting)
            if self._shut_by:
                admitted = False
            else:
                admitted = True
                self._inside += 1
        try:
            yield admitted
        finally:
            if admitted:
                await self._leave()

    @asynccontextmanager
    async def nobody_inside(self) -> AsyncIterator[None]:
        """Let nobody in, wait until everybody has left, and hold the gate shut for the length of the block."""
        self._shut_by += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._inside == 0)
            yield
        finally:
            await self._open()

    async def abort(self, *, rejecting: bool) -> int:
        """Shut the gate until `resume`, end the requests inside, and return how many there were.

        `rejecting`: send away who comes meanwhile, instead of letting them wait.
        """
        if not self.aborting:
            self._shut_by += 1
        self.aborting, self._rejecting = True, rejecting
        ended = self._inside
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._inside == 0)
        return ended

    async def resume(self) -> None:
        """Undo `abort`; without one, nothing."""
        if self.aborting:
            self.aborting = self._rejecting = False
            await self._open()

    async def _leave(self) -> None:
        async with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    async def _open(self) -> None:
        async with self._changed:
            self._shut_by -= 1
            self._changed.notify_all()
