"""A connection between two processes, with concurrent requests and answers in both directions.

A frame is a head (kind, number, size) and then `size` bytes. Each end numbers its own requests. The encoding of the
bytes is a parameter, so that a process that serves foreign code never needs to unpickle.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import count
from typing import Any

HEAD = struct.Struct("<BQQ")
MAX_BYTES = 1 << 40
"""Maximum size of a frame unless the user of a connection sets a smaller one."""


class Kind(IntEnum):
    """Kind of a frame."""

    REQUEST = 1
    PART = 2
    """A part of an answer that follows."""
    ANSWER = 3
    CANCEL = 4
    """The sender does not wait for its request any more."""


@dataclass(frozen=True)
class Encoding:
    """Functions from values to bytes and back."""

    dump: Callable[[Any], bytes]
    load: Callable[[bytes], Any]
    """Raises ValueError if the bytes have a different format. The connection then ends."""


PICKLE = Encoding(partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL), pickle.loads)
"""Encoding for two processes of the same package, over a socket pair that no other process has."""

SendPart = Callable[[Any], None]
Handle = Callable[[Any, SendPart], Awaitable[Any]]


class Connection:
    """One end of a connection. No other object may read from or write to its streams."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        encoding: Encoding,
        handle: Handle | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Start to read. Needs a running event loop.

        Args:
            reader: stream from the other end.
            writer: stream to the other end.
            encoding: the same at both ends.
            handle: returns the answer to a request, and an answer that describes the failure instead of raising. It is
                cancelled if the other end cancels its request or closes the connection.
            max_bytes: a larger frame ends the connection.
        """
        self.has_ended = False
        self._reader, self._writer = reader, writer
        self._encoding = encoding
        self._handle = handle
        self._max_bytes = max_bytes
        self._numbers = count(1)
        self._waiting: dict[int, tuple[asyncio.Future[bytes], SendPart | None]] = {}
        self._handling: dict[int, asyncio.Task[None]] = {}
        self._reading = asyncio.create_task(self._read(), name="rllm-connection")

    @classmethod
    async def open(cls, connection: socket.socket, encoding: Encoding, handle: Handle | None = None) -> Connection:
        """Return the end of a connection that has this socket."""
        return cls(*await asyncio.open_connection(sock=connection), encoding, handle)

    async def ask(self, body: Any, within: float | None = None, on_part: SendPart | None = None) -> Any:
        """Return the answer to a request. The other end is notified if this is cancelled or takes too long.

        Args:
            body: the request.
            within: deadline in seconds. None if there is no deadline.
            on_part: receives the parts that the other end sends before its answer.

        Raises:
            TimeoutError: there is no answer after `within` seconds.
            EOFError: the connection has ended.
        """
        if self.has_ended:
            raise EOFError
        number = next(self._numbers)
        self._send(Kind.REQUEST, number, body)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, on_part
        try:
            async with asyncio.timeout(within):
                with contextlib.suppress(ConnectionError):  # the end of the connection fails the future
                    await self._writer.drain()
                answer = await future
        except (TimeoutError, asyncio.CancelledError):
            self._write(Kind.CANCEL, number, b"")
            raise
        finally:
            del self._waiting[number]
        return self._encoding.load(answer)

    async def wait_until_end(self) -> None:
        """Return when one of the two ends has closed the connection."""
        await asyncio.wait([self._reading])

    async def close(self) -> None:
        """Close the connection, and cancel the handling of all requests."""
        self._reading.cancel()
        await asyncio.gather(self._reading, *self._handling.values(), return_exceptions=True)
        self._end()  # a task that is cancelled before its first step has no `finally`
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        try:
            while True:
                kind, number, size = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                if size > self._max_bytes:
                    return
                self._take(Kind(kind), number, await self._reader.readexactly(size))
        except (EOFError, OSError, ValueError):
            return
        finally:
            self._end()

    def _take(self, kind: Kind, number: int, data: bytes) -> None:
        match kind:
            case Kind.REQUEST:
                task = asyncio.create_task(self._answer(number, self._encoding.load(data)))
                self._handling[number] = task
                task.add_done_callback(lambda _: self._handling.pop(number, None))
            case Kind.CANCEL:
                if number in self._handling:
                    self._handling[number].cancel()
            case Kind.ANSWER | Kind.PART:
                future, on_part = self._waiting.get(number, (None, None))
                if future is None or future.done():
                    return
                if kind is Kind.ANSWER:
                    future.set_result(data)
                elif on_part is not None:
                    on_part(self._encoding.load(data))

    async def _answer(self, number: int, body: Any) -> None:
        assert self._handle is not None
        answer = await self._handle(body, partial(self._send, Kind.PART, number))
        self._send(Kind.ANSWER, number, answer)

    def _send(self, kind: Kind, number: int, body: Any) -> None:
        self._write(kind, number, self._encoding.dump(body))

    def _write(self, kind: Kind, number: int, data: bytes) -> None:
        if not self.has_ended:
            self._writer.write(HEAD.pack(kind, number, len(data)) + data)

    def _end(self) -> None:
        self.has_ended = True
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError())
        for task in self._handling.values():
            task.cancel()
        self._writer.close()


def serve_blocking(connection: socket.socket, answer: Callable[[bytes], bytes]) -> None:
    """Answer encoded requests one by one, until the other end closes. Cancelled requests are answered too."""
    with connection, connection.makefile("rb") as stream, contextlib.suppress(ConnectionError):
        while len(head := stream.read(HEAD.size)) == HEAD.size:
            kind, number, size = HEAD.unpack(head)
            data = stream.read(size)
            if kind == Kind.REQUEST and len(data) == size:
                encoded = answer(data)
                connection.sendall(HEAD.pack(Kind.ANSWER, number, len(encoded)) + encoded)
