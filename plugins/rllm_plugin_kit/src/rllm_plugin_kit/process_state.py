"""Process-wide state, recorded before a plugin runs and compared afterwards."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

OF_PYTEST = {signal.SIGALRM}
"""It limits the time of each test by it."""
THREADS = "running threads"
RANDOM_NUMBERS = frozenset(("Python's random numbers", "NumPy's random numbers"))
TRIES = 5
PATIENCE = 10.0
"""Seconds that a thread has to end after its owner was closed."""


def read_process_state() -> dict[str, object]:
    """Return the process-wide state by its name in messages."""
    root = logging.getLogger()
    name, keys, *position = np.random.get_state()
    return {
        "the working directory": Path.cwd(),
        "environment variables": {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "Python's random numbers": random.getstate(),
        "NumPy's random numbers": (name, np.asarray(keys).tobytes(), *position),
        "sys.exit": sys.exit,
        "sys.excepthook": sys.excepthook,
        "standard output": (sys.stdout, sys.stderr),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals() - OF_PYTEST},
        "the root logger": (root.level, tuple(root.handlers)),
        THREADS: frozenset(threading.enumerate()),
    }


def find_changed_state(before: Mapping[str, object], excused: Collection[str] = ()) -> list[str]:
    """Return the names of process-wide state that changed, except `excused`. Wait first for threads that are ending."""
    if THREADS not in excused:
        for thread in _new_threads(before):
            thread.join(PATIENCE)
    after = read_process_state() | {THREADS: before[THREADS] if not _new_threads(before) else None}
    return [name for name, value in before.items() if after[name] != value and name not in excused]


def find_changes(act: Callable[[], object], excused: Collection[str] = ()) -> list[str]:
    """Return the names of process-wide state that `act` changed, except `excused`.

    If only random numbers differ, `act` runs again, up to `TRIES` times. A thread of a different test, for example a
    client that retries, sometimes draws from the shared generators. A plugin that draws from them does so every time.
    """
    different = _find_changes(act, excused)
    for _ in range(TRIES - 1):
        if not different or not RANDOM_NUMBERS.issuperset(different):
            break
        different = _find_changes(act, excused)
    return different


def _find_changes(act: Callable[[], object], excused: Collection[str]) -> list[str]:
    with _generators_seeded_by_the_system():
        before = read_process_state()
        act()
        return find_changed_state(before, excused)


@contextmanager
def _generators_seeded_by_the_system() -> Iterator[None]:
    """Seed the generators randomly. Otherwise a call that seeds them with the previous seed would go unnoticed."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed()
    np.random.seed()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _new_threads(before: Mapping[str, object]) -> set[threading.Thread]:
    threads = before[THREADS]
    assert isinstance(threads, frozenset)
    return set(threading.enumerate()) - threads
