"""Programs that cannot be started, and connections that end together with those to the gateway."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from expecting import expect_error

from rllm.sandboxes.forwarding import connect, forward
from rllm.sandboxes.process import run_program
from rllm_core.errors import PluginError


async def run(*command: str) -> None:
    await run_program(command, seconds=60.0, stdin=b"", environment={})


def test_argument_longer_than_linux_allows_is_an_error() -> None:
    with expect_error(PluginError, "sandbox-failed"):
        asyncio.run(run("echo", "x" * 140_000))


def test_cancellation_during_a_failed_start_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel() -> None:
        begun = asyncio.Event()

        async def fail(*command: Any, **options: Any) -> None:
            begun.set()
            await asyncio.sleep(0.01)
            raise OSError(errno.EAGAIN, "again")

        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
        running = asyncio.create_task(run("echo"))
        await begun.wait()
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


Act = Callable[[socket.socket, asyncio.Task[None]], Awaitable[None]]


def received_after(act: Act) -> bytes:
    """Return the bytes that the gateway receives on a connection up to its end, if `act` ends it."""

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        arrived, received = asyncio.Event(), loop.create_future()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            begun = await reader.readexactly(1)
            arrived.set()
            received.set_result(begun + await reader.read())
            writer.close()

        gateway = await asyncio.start_server(answer, "127.0.0.1", 0)
        listener = socket.create_server(("127.0.0.1", 0))
        ours, theirs = socket.socketpair()
        with ours, theirs, listener, socket.socket() as client:
            ours.setblocking(False)
            socket.send_fds(theirs, [b"1"], [listener.fileno()])
            forwarding = asyncio.create_task(forward(ours, gateway.sockets[0].getsockname()[1]))
            await asyncio.to_thread(client.connect, listener.getsockname())
            client.sendall(b"x")
            await arrived.wait()
            await act(client, forwarding)
            async with asyncio.timeout(10.0):
                sent: bytes = await received
            forwarding.cancel()
            await asyncio.wait([forwarding])
        gateway.close()
        return sent

    return asyncio.run(run())


async def reset(client: socket.socket, forwarding: asyncio.Task[None]) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def cancel(client: socket.socket, forwarding: asyncio.Task[None]) -> None:
    forwarding.cancel()


async def end(client: socket.socket, forwarding: asyncio.Task[None]) -> None:
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("act", [reset, cancel, end])
def test_gateway_sees_the_end_of_a_connection(act: Act) -> None:
    assert received_after(act) == b"x"


def test_close_by_both_sides_at_once_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_eof(writer: asyncio.StreamWriter) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    async def run() -> None:
        forwarded = asyncio.get_running_loop().create_future()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await connect(reader, writer, port)
            except BaseExceptionGroup as error:
                forwarded.set_exception(error)
            else:
                forwarded.set_result(None)

        gateway = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = gateway.sockets[0].getsockname()[1]
        server = await asyncio.start_server(begin, "127.0.0.1", 0)
        _, client = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(10.0):
            await forwarded
        client.close()
        server.close()
        gateway.close()

    monkeypatch.setattr(asyncio.StreamWriter, "write_eof", write_eof)
    asyncio.run(run())
