"""What goes between the process that samples and the one that trains: pickled values, each behind its size."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct

SIZE = struct.Struct("!Q")


def packed(value: object) -> bytes:
    """A value as it is sent."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return SIZE.pack(len(body)) + body


def receive(connection: socket.socket) -> bytearray:
    """The next value, pickled. Raises EOFError: the other end is closed."""
    (size,) = SIZE.unpack(_exactly(connection, SIZE.size))
    return _exactly(connection, size)


async def received(connection: socket.socket) -> bytearray:
    """As `receive`, for a connection that does not block."""
    (size,) = SIZE.unpack(await _exactly_soon(connection, SIZE.size))
    return await _exactly_soon(connection, size)


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        left = left[_some(connection.recv_into(left)) :]
    return data


async def _exactly_soon(connection: socket.socket, count: int) -> bytearray:
    loop, data = asyncio.get_running_loop(), bytearray(count)
    left = memoryview(data)
    while left:
        left = left[_some(await loop.sock_recv_into(connection, left)) :]
    return data


def _some(count: int) -> int:
    if not count:
        raise EOFError("the other end of the connection is closed")
    return count
