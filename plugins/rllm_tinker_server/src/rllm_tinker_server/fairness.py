"""Fairness between owners: limits that they share, a gate that they pass alternately, and room for request bodies."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rllm_tinker_server.owners import OWNER
from rllm_tinker_server.request_errors import BusyError


def has_share(limit: int, used: int, own: int, amount: int) -> bool:
    """True if an owner that uses `own` of all the `used` units may use `amount` more.

    An owner may use as many units as remain free. So one owner gets half, two get a third each, and a part always
    remains for the next owner (Choudhury and Hahne 1998, dynamic queue length thresholds with alpha 1). A request that
    finds nothing in use is accepted in any case.
    """
    return not used or own + amount <= limit - used


class SharedLimit:
    """Units in use, by owner."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used: Counter[str] = Counter()
        self.used = 0

    def has_room(self, owner: str, amount: int) -> bool:
        """Return the result of `has_share` for an owner that uses `amount` units more."""
        return has_share(self._limit, self.used, self._used[owner], amount)

    def add(self, owner: str, amount: int) -> None:
        """Count units as used, also above the limit."""
        self._used[owner] += amount
        self.used += amount

    def remove(self, owner: str, amount: int) -> None:
        """Count units as free."""
        self.add(owner, -amount)
        if not self._used[owner]:
            del self._used[owner]


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


class LimitHeldBodies:
    """Middleware that raises BusyError (429) for a body without room. Its bytes are discarded as they arrive.

    Room for the declared length is reserved before the first byte is read, so an accepted body always completes. The
    room is free again when the request is answered.
    """

    def __init__(self, app: ASGIApp, max_held: int, max_body: int) -> None:
        """Make the middleware.

        Args:
            app: application that reads the bodies.
            max_held: maximum bytes of all bodies together, which owners share.
            max_body: maximum bytes of a body. The application rejects larger bodies.
        """
        self._app = app
        self._held = SharedLimit(max_held)
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        owner, reserved, arrived = scope[OWNER].name, 0, 0

        async def reserve(needed: int, message: Message | None) -> None:
            nonlocal reserved
            if needed <= reserved:
                return
            if not self._held.has_room(owner, needed - reserved):
                while message is None or message.get("more_body"):
                    message = await receive()
                raise BusyError("Too many bytes of requests are arriving. Send this one again later.")
            self._held.add(owner, needed - reserved)
            reserved = needed

        async def receive_within_limit() -> Message:
            nonlocal arrived
            if not arrived:
                await reserve(min(_declared_length(scope), self._max_body), None)
            message = await receive()
            arrived += len(message.get("body", b""))
            await reserve(min(arrived, self._max_body), message)
            return message

        try:
            await self._app(scope, receive_within_limit, send)
        finally:
            self._held.remove(owner, reserved)


def _declared_length(scope: Scope) -> int:
    """Return the length of the body in the request's header. 0 if the body arrives in chunks."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(length) if length.isdigit() else 0
