"""Connections from a sandbox to two servers of this machine, and to another machine."""

from __future__ import annotations

import asyncio
from typing import Any

SECONDS = 60.0
SOURCE = """
import socket
for host, port in [("127.0.0.1", {}), ("127.0.0.1", {}), ("192.0.2.1", 80)]:
    try:
        link = socket.create_connection((host, port), 5)
        link.sendall(b"hello\\n")
        print(link.recv(9))
    except OSError as error:
        print(type(error).__name__)
"""
REFUSED = [b"ConnectionRefusedError", b"OSError"]
ONLY_THE_PORT = [[b"b'hello\\n'", *REFUSED], [REFUSED[0], *REFUSED]]


async def connect(sandbox: Any, python: str) -> list[list[bytes]]:
    """Return what each connection receives in a command with the port of the first server, and in one without."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(2)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    command = [python, "-I", "-S", "-c", SOURCE.format(*ports)]
    results = [await sandbox.run(command, seconds=SECONDS, port=port) for port in (ports[0], None)]
    for server in servers:
        server.close()
    return [result.stdout.split() for result in results]
