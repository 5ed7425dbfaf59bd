"""A gate for sampling requests. It is closed while weights change and after verl's abort."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """The gate. It counts the running requests and belongs to one event loop."""

    def __init__(self) -> None:
        self.aborting = False
        """True if running requests must stop after the current token."""
        self._rejecting = False
        self._shut_by = 0
        self._inside = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[bool]:
        """Wait until the gate is open, then count as a running request in this block. Yield False if rejected."""
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
        """Close the gate for this block, and wait until no request is running."""
        self._shut_by += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._inside == 0)
            yield
        finally:
            await self._open()

    async def abort(self, *, rejecting: bool) -> int:
        """Close the gate until `resume`, stop the running requests, and return their number.

        If `rejecting` is True, new requests are rejected in the meantime. Otherwise they wait.
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
        """Undo `abort`. Do nothing if there was none."""
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
