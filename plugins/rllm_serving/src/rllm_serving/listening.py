"""Open the socket on which a server listens, and announce its address.

The announcement is a file: ``{"url": …, "port": …, "pid": …}``.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import os
import socket
import time
from pathlib import Path

from rllm_core.errors import ConfigError
from rllm_core.files import write_atomically
from rllm_serving.child_process import ChildProcess

LOOPBACK = "127.0.0.1"
BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""


def listen(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """Return a listening socket.

    Args:
        host: an address or a name of this machine.
        port: the port. 0: any free port.

    Raises:
        ConfigError: the port is in use, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that are created as TCP sockets. Otherwise a small answer takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        taken = error.errno == errno.EADDRINUSE
        why = "another program listens there" if taken else error.strerror or str(error)
        raise ConfigError(
            "port-unavailable",
            f"Cannot listen on {host} port {port}: {why}.",
            "Stop that program, or set a different --port (0 means any free port)." if taken else "Check --host.",
        ) from error
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket, such as ``http://127.0.0.1:8017``."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reachable_url(url: str) -> str:
    """Return a URL that this machine can use, for a server on all addresses such as ``http://0.0.0.0:8017``."""
    return url.replace("//0.0.0.0:", f"//{LOOPBACK}:").replace("//[::]:", "//[::1]:")


def is_loopback(host: str) -> bool:
    """True if only programs on this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


POLL = 0.05


class EndedError(Exception):
    """The server ended before it was ready."""


def announce(file: Path, listening: socket.socket) -> None:
    """Write the file. Call this when the server answers requests."""
    port = listening.getsockname()[1]
    write_atomically(file, json.dumps({"url": reachable_url(url_of(listening)), "port": port, "pid": os.getpid()}))


async def wait_for_url(file: Path, process: ChildProcess, within: float) -> str:
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
