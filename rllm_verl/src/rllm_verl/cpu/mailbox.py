"""Weights on their way from one trainer to many rollouts: a Ray actor that keeps one message at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rllm_core.errors import BackendError

if TYPE_CHECKING:
    from rllm_verl.cpu.buckets import Arrays


class Mailbox:
    """Every reader takes every message, in order. The sender waits for the slowest reader."""

    def __init__(self, readers: int) -> None:
        self._readers = readers
        self._number = -1
        self._message: Arrays | None = None
        self._left = 0
        self._failure: str | None = None
        self._changed = asyncio.Condition()

    async def put(self, message: Arrays | None) -> None:
        """Offer the next message; None says that there are no more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._left == 0)
            self._message, self._left = message, self._readers
            self._number += 1
            self._changed.notify_all()

    async def fail(self, why: str) -> None:
        """The sender has no more messages, though there should be."""
        async with self._changed:
            self._failure = why
            self._changed.notify_all()

    async def take(self, number: int) -> Arrays | None:
        """Message `number`, from 0 on; None after the last.

        Raises:
            BackendError: the sender failed.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._number == number or self._failure is not None)
            if self._failure is not None:
                raise BackendError(f"The trainer could not send its weights: {self._failure}", "See its log.")
            message = self._message
            self._left -= 1
            self._changed.notify_all()
            return message
