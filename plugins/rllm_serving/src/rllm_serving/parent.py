"""Whether the process that started this one still lives: it holds the other end of standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable


def when_parent_ends(call: Callable[[], None]) -> None:
    """Have the running event loop call something once standard input is closed. What comes there is thrown away."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def wait() -> None:
        while os.read(descriptor, 1 << 16):
            pass
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    threading.Thread(target=wait, name="rllm-parent", daemon=True).start()
