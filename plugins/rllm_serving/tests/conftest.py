"""An application that tells how many bytes it was sent, served on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from rllm_serving.http_server import HttpServer
from rllm_serving.listening import listen

DEADLINE = 100.0
"""Seconds after which something hangs, however busy the machine is."""

Address = tuple[str, int]
Serve = Callable[..., Address]


async def count_bytes(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application."""
    total, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        total, more = total + len(message.get("body", b"")), message.get("more_body", False)
    body = str(total).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serve_app(app: Any, **options: Any) -> Iterator[Address]:
    listening = listen()
    host, port = listening.getsockname()[:2]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = HttpServer(app, listening, **options)
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(DEADLINE)
    try:
        yield host, port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(DEADLINE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE)
        loop.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(app, **options)`` returns host and port."""
    with ExitStack() as stack:

        def begin(app: Any = count_bytes, **options: Any) -> Address:
            return stack.enter_context(serve_app(app, **options))

        yield begin
