"""Whether the process that started this one still lives: it holds the other end of standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable


def when_parent_ends(call: Callable[[], None]) -> None:
    """Have the running event loop call something once standard input is closed. What comes there is thrown away."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    _watch(tell)


def end_with_parent() -> None:
    """End this process once standard input is closed, whatever it computes then. What comes there is thrown away."""
    _watch(lambda: os._exit(0))


def _watch(call: Callable[[], None]) -> None:
    descriptor = sys.stdin.fileno()

    def wait() -> None:
        while os.read(descriptor, 1 << 16):
            pass
        call()

    threading.Thread(target=wait, name="rllm-parent", daemon=True).start()
