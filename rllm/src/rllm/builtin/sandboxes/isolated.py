"""Shared code of sandboxes without a network: start, copies into them, and connections to a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import tarfile
from collections.abc import Sequence
from pathlib import Path

from rllm.builtin.sandboxes.process import CHUNK
from rllm_core.contracts.sandbox import Sandbox, SandboxSetup
from rllm_core.errors import RolloutError

UNPACK = """
if [ -L "$0" ]; then rm "$0"; fi
chmod -R u+rwX "$0" 2>/dev/null
mkdir -p "$0" && find "$0" -mindepth 1 -delete && tar --extract --no-same-owner --file - --directory "$0"
"""
FULL = ("No space left on device", "Wrote only")
"""Messages of tar if the disk is full, or a file is larger than the disk."""
COPY_SECONDS = 600.0


class IsolatedSandbox(Sandbox):
    """A sandbox into which a command copies directories."""

    async def copy_in(self, source: Path, target: str) -> None:
        archive = await asyncio.to_thread(_pack_directory, source)
        result = await self.run(["sh", "-c", UNPACK, target], seconds=COPY_SECONDS, stdin=archive)
        if result.exit_code != 0:
            said = result.stderr.decode(errors="replace").strip()
            full = "Make the directory smaller, or set a larger storage_mb in the task's task.toml."
            raise RolloutError(
                "copy-failed",
                f"{target} of the sandbox cannot be replaced: {said}",
                full if any(text in said for text in FULL) else "Check the files in the task's directory.",
            )


async def start_holder(*command: str) -> tuple[asyncio.subprocess.Process, str | None]:
    """Start the process of a sandbox that waits on its standard input for the sandbox's end.

    Returns:
        The process, and the reason why it has ended. None if it has printed ``ready``.
    """
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    assert holder.stdout is not None and holder.stderr is not None
    if (await holder.stdout.readline()).strip() == b"ready":
        return holder, None
    reason = (await holder.stderr.read()).decode(errors="replace").strip()
    await holder.wait()
    return holder, reason


def readable_paths(readable: Sequence[str], setup: SandboxSetup) -> list[Path]:
    """Return the files and directories of this machine that commands may read. `readable` is the sandbox's option."""
    return [*(Path(each).expanduser().absolute() for each in readable), *setup.readable]


def _pack_directory(source: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(source.resolve(), ".")
    return file.getvalue()


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

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(connect(reader, writer, port))
        connections.add(connection)
        connection.add_done_callback(connections.discard)

    server = await asyncio.start_server(on_connection, sock=socket.socket(fileno=descriptors[0]))
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
