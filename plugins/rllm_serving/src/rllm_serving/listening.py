"""The socket that a server listens on."""

from __future__ import annotations

import errno
import ipaddress
import socket

from rllm_core.errors import ConfigError

LOOPBACK = "127.0.0.1"
BACKLOG = 2048
"""Connections that wait to be accepted."""


def listen(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """A socket that listens.

    Args:
        host: an address or a name of this machine.
        port: 0 takes any that is free.

    Raises:
        ConfigError: the port is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers at once (TCP_NODELAY) only on sockets that say they are TCP: else each takes 40 ms.
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
            "Stop that program, or choose another --port (0 takes any that is free)." if taken else "Check --host.",
        ) from error
    listening.setblocking(False)
    return listening


def url_of(listening: socket.socket) -> str:
    """Where it listens: ``http://127.0.0.1:8017``."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reachable(url: str) -> str:
    """An address of this machine for what listens on all of its addresses, ``http://0.0.0.0:8017``."""
    return url.replace("//0.0.0.0:", f"//{LOOPBACK}:").replace("//[::]:", "//[::1]:")


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
