"""Detect the end of the parent process, which has the other end of this process's standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable


def when_parent_ends(call: Callable[[], None]) -> None:
    """Call a function on the running event loop when standard input is closed. Its input is discarded."""
    loop = asyncio.get_running_loop()

    def tell() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    _watch(tell)


def end_with_parent() -> None:
    """End this process when standard input is closed, even during a computation. Its input is discarded."""
    _watch(lambda: os._exit(0))


def _watch(call: Callable[[], None]) -> None:
    descriptor = sys.stdin.fileno()

    def wait() -> None:
        while os.read(descriptor, 1 << 16):
            pass
        call()

    threading.Thread(target=wait, name="rllm-parent", daemon=True).start()
