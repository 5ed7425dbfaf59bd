"""The end of the process of a command."""

from __future__ import annotations

import atexit
import gc
import io
import os
from contextlib import suppress
from functools import cache


@cache
def shorten_process_end() -> None:
    """Let this process end without Python's last garbage collections.

    They need up to a minute for a million objects, for example of the packages of an environment. Call this before
    all other functions of `atexit` are registered, because they run in the opposite order.
    """
    atexit.register(_skip_collections)


STDERR = 2
"""Descriptor of the standard error stream, also for code in C."""
_FILES = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}


def _skip_collections() -> None:
    # A collection would close and so flush the files of its objects.
    has_nanobind = False
    for each in gc.get_objects():
        kind = type(each)  # `isinstance` runs code of lazy objects.
        if kind in _FILES:
            with suppress(OSError, ValueError):
                each.flush()
        has_nanobind |= kind.__module__ == "nanobind"
    if has_nanobind:
        # Extensions such as duckdb would print a warning for each object that is not collected.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, STDERR)
    gc.freeze()
