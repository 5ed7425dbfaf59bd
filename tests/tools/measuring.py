"""CPU time and peak memory of calls in this process.

The treatment of freed memory in glibc's allocator depends on earlier calls. It may return every array to the system and
get fresh pages for the next one, which costs more than the arithmetic. `keep_freed_memory` removes this chance from all
timings.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 8.0
"""Seconds after which no further repeat begins. At least three are made."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Make the allocator reuse freed memory. Does nothing if the C library is not glibc."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(MMAP_THRESHOLD, 2**31 - 1)


def release_freed_memory() -> None:
    """Return all freed memory to the system, if the C library is glibc."""
    gc.collect()
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def seconds(calls: Sequence[Callable[[], Any]], repeats: int, before: Callable[[], object] = gc.collect) -> list[float]:
    """Return each call's median CPU time. They are called alternately. `before` is called before each and not timed."""
    taken: list[list[float]] = [[] for _ in calls]
    began = time.perf_counter()
    for done in range(repeats):
        if done >= 3 and time.perf_counter() - began > PATIENCE:
            break
        for call, times in zip(calls, taken, strict=True):
            before()
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
    return [statistics.median(times) for times in taken]


def peak_megabytes(call: Callable[[], Any]) -> float | None:
    """Return the peak resident memory of a call above the memory before it. None if the system does not report it."""
    release_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _resident("VmRSS")
    call()
    return max(0.0, _resident("VmHWM") - before)


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "malloc_trim") else None


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(kilobytes) / 1024
