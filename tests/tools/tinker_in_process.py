"""A Tinker server on a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_serving.listening import url_of
from rllm_tinker_server.serve import ModelOptions, TinkerServeOptions, listen_for, open_service, serve_service
from rllm_tinker_server.service import Service

START_DEADLINE = 60.0


@dataclass(frozen=True)
class RunningServer:
    """A server on a thread of this process."""

    url: str
    service: Service


@contextmanager
def running_server(service: Service, options: TinkerServeOptions | None = None) -> Iterator[RunningServer]:
    """Serve on a thread with a separate event loop, because clients in this process may block their event loop.

    Raises:
        ConfigError: the server cannot listen on the address.
    """
    options = options or TinkerServeOptions()
    listening = listen_for(options)
    url = url_of(listening)
    started, loops, stop = threading.Event(), list[asyncio.AbstractEventLoop](), asyncio.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await serve_service(service, options, listening, started.set, stop)

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="tinker-server", daemon=True)
    thread.start()
    try:
        if not started.wait(START_DEADLINE):
            raise TimeoutError(f"The server did not start within {START_DEADLINE:g} s.")
        yield RunningServer(url, service)
    finally:
        if loops and thread.is_alive():
            loops[0].call_soon_threadsafe(stop.set)
        thread.join(START_DEADLINE)


@contextmanager
def tiny_server(
    checkpoints: Path, serve_options: TinkerServeOptions | None = None, **options: Any
) -> Iterator[RunningServer]:
    """Serve the model `tiny`. `options` are fields of `ModelOptions`.

    The caches for keys and values are small. With the default of 1 GiB, they grow through all tests of a process.
    """
    made = ModelOptions(**{"model": "tiny", "checkpoints": checkpoints, "kv_cache_gib": 0.05} | options)
    with open_service(made) as service, running_server(service, serve_options) as server:
        yield server
