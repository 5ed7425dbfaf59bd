"""Connections between two processes, over socket pairs."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rllm_serving.connection import HEAD, PICKLE, Connection, Kind, SendPart, serve_blocking


class Peer:
    """Doubles numbers, waits forever for "wait", and reports three parts for "parts"."""

    def __init__(self) -> None:
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

    async def handle(self, body: Any, send_part: SendPart) -> Any:
        if body == "parts":
            for part in range(3):
                send_part(part)
            return "whole"
        if body == "wait":
            self.begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                self.cancelled.set()
        return 2 * body


@asynccontextmanager
async def connect_ends() -> AsyncIterator[tuple[Connection, Peer, Connection]]:
    ours, theirs = socket.socketpair()
    peer = Peer()
    near, far = await Connection.open(ours, PICKLE), await Connection.open(theirs, PICKLE, peer.handle)
    try:
        yield near, peer, far
    finally:
        await near.close()
        await far.close()


def test_connection_many_requests_get_their_answers() -> None:
    async def run() -> None:
        async with connect_ends() as (near, peer, _):
            waiting = asyncio.create_task(near.ask("wait"))
            assert await asyncio.gather(*map(near.ask, range(50))) == [2 * number for number in range(50)]
            large = b"x" * (3 << 20)
            assert await near.ask(large) == 2 * large
            parts: list[int] = []
            assert await near.ask("parts", on_part=parts.append) == "whole"
            assert parts == [0, 1, 2]
            assert not waiting.done()
            waiting.cancel()
            await peer.cancelled.wait()

    asyncio.run(run())


def test_connection_deadline_cancels_the_request() -> None:
    async def run() -> None:
        async with connect_ends() as (near, peer, _):
            with pytest.raises(TimeoutError):
                await near.ask("wait", within=0.01)
            await peer.cancelled.wait()
            assert await near.ask(3) == 6

    asyncio.run(run())


def test_connection_end_fails_requests_and_cancels_handling() -> None:
    async def run() -> None:
        async with connect_ends() as (near, peer, far):
            waiting = asyncio.create_task(near.ask("wait"))
            await peer.begun.wait()
            await far.close()
            assert peer.cancelled.is_set()
            with pytest.raises(EOFError):
                await waiting
            await near.wait_until_end()
            with pytest.raises(EOFError):
                await near.ask(1)

    asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [b"\xff" * HEAD.size, HEAD.pack(Kind.REQUEST, 1, 1 << 20), HEAD.pack(Kind.REQUEST, 1, 9)[:5]],
    ids=["unknown kind", "too large", "cut"],
)
def test_connection_bad_bytes_end_it(data: bytes) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        end = Connection(*await asyncio.open_connection(sock=ours), PICKLE, max_bytes=100)
        with theirs:
            theirs.sendall(data)
        await end.wait_until_end()
        assert end.has_ended
        await end.close()

    asyncio.run(run())


def test_serve_blocking_answers_in_order_and_ignores_cancellation() -> None:
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=serve_blocking, args=(theirs, lambda data: PICKLE.dump(PICKLE.load(data) + 1)))
    server.start()

    async def run() -> None:
        end = await Connection.open(ours, PICKLE)
        given_up = asyncio.create_task(end.ask(1))
        await asyncio.sleep(0)
        given_up.cancel()
        assert [await end.ask(number) for number in (2, 3)] == [3, 4]
        await end.close()

    asyncio.run(run())
    server.join(20)
    assert not server.is_alive()
