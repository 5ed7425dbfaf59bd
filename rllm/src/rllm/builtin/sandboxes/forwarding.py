"""Forward connections from the namespace of a sandbox's command to a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from rllm.builtin.sandboxes.process import CHUNK

LOOPBACK = "127.0.0.1"


async def forward(channel: socket.socket, port: int) -> None:
    """Receive a listening socket through `channel`, and forward its connections to `port` until this is cancelled."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(channel, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(channel)
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        return  # The command has ended before it started.

    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(connect(reader, writer, port))
        connections.add(connection)
        connection.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, sock=socket.socket(fileno=descriptors[0]))
    try:
        await loop.create_future()
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Forward one connection, until both sides have ended or one is broken."""
    with contextlib.closing(writer):
        try:
            theirs, ours = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            return
        with contextlib.closing(ours):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(reader, ours))
                    group.create_task(_pump(theirs, writer))
            except* OSError:
                pass  # A side is gone. The other side sees it when its connection is closed.


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(CHUNK):
        writer.write(part)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
