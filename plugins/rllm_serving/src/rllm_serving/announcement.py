"""The announcement file, in which a server writes its address: ``{"url": …, "port": …, "pid": …}``."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path

from rllm_core.files import write_atomically
from rllm_serving.child_process import ChildProcess
from rllm_serving.listening import reachable, url_of

POLL = 0.05


class EndedError(Exception):
    """The server ended before it was ready."""


def announce(file: Path, listening: socket.socket) -> None:
    """Write the file. Call this when the server answers requests."""
    port = listening.getsockname()[1]
    write_atomically(file, json.dumps({"url": reachable(url_of(listening)), "port": port, "pid": os.getpid()}))


async def announced_url(file: Path, process: ChildProcess, within: float) -> str:
    """Wait for the announcement of a server, and return its URL.

    Args:
        file: the file that `announce` writes.
        process: the server's process.
        within: time limit in seconds.

    Raises:
        EndedError: the process ended before.
        TimeoutError: the time limit has passed.
    """
    until = time.monotonic() + within
    while not file.exists():
        if process.exit_code is not None:
            raise EndedError
        if time.monotonic() > until:
            raise TimeoutError(f"not announced within {within:g} s")
        await asyncio.sleep(POLL)
    return str(json.loads(file.read_text(encoding="utf-8"))["url"])
