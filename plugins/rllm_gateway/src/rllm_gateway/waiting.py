"""Waiting for an answer as long as the client does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rllm_gateway.answer import Answer
from rllm_gateway.http import ClientGoneError
from rllm_gateway.live_session import Work
from rllm_gateway.refusals import RefusedError


@contextmanager
def waiting_for(work: Work) -> Iterator[None]:
    """Whoever goes last cancels what is sampled; what is being stored is stored."""
    work.waiters += 1
    try:
        yield
    finally:
        work.waiters -= 1
        if not work.waiters and not work.storing:
            work.task.cancel()


async def answered(
    work: Work, gone: asyncio.Task[None], within: float | None = None, news: asyncio.Event | None = None
) -> bool:
    """Wait for an answer, for `within` seconds, or until `news` is set. Returns whether the answer is there.

    Raises:
        ClientGoneError: the client hung up before.
    """
    told = None if news is None else asyncio.create_task(news.wait())
    try:
        ends = {work.task, gone} if told is None else {work.task, gone, told}
        done, _ = await asyncio.wait(ends, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if told is not None:
            told.cancel()
    if gone in done and work.task not in done:
        raise ClientGoneError
    return work.task in done


def answer_of(work: Work) -> Answer:
    """The answer of work that has ended. Raises RefusedError."""
    if work.task.cancelled():
        raise RefusedError(409, "conflict", "The session was closed while its model answered.", code="session_closed")
    return work.task.result()
