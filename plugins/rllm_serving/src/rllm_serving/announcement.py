"""The file by which a server tells whoever started it where it listens: ``{"url": …, "port": …, "pid": …}``."""

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
    """The server has ended before it listened."""


def announce(file: Path, listening: socket.socket) -> None:
    """Write it, once requests are answered."""
    port = listening.getsockname()[1]
    write_atomically(file, json.dumps({"url": reachable(url_of(listening)), "port": port, "pid": os.getpid()}))


async def announced_url(file: Path, process: ChildProcess, within: float) -> str:
    """The URL, once it is announced.

    Args:
        file: that `announce` writes.
        process: which does so.
        within: seconds.

    Raises:
        EndedError: the process has ended instead.
        TimeoutError: it takes longer.
    """
    until = time.monotonic() + within
    while not file.exists():
        if process.exit_code is not None:
            raise EndedError
        if time.monotonic() > until:
            raise TimeoutError(f"not announced within {within:g} s")
        await asyncio.sleep(POLL)
    return str(json.loads(file.read_text(encoding="utf-8"))["url"])
