"""The end of the process of a command."""

from __future__ import annotations

import atexit
import gc
import io
from contextlib import suppress
from functools import cache


@cache
def shorten_process_end() -> None:
    """Let this process end without Python's last garbage collections.

    They need up to a minute for a million objects, for example of the packages of an environment. Call this before
    all other functions of `atexit` are registered, because they run in the opposite order.
    """
    atexit.register(_skip_collections)


_FILES = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}


def _skip_collections() -> None:
    # A collection would close and so flush the files of its objects.
    for each in gc.get_objects():
        kind = type(each)  # `isinstance` runs code of lazy objects.
        if kind in _FILES:
            with suppress(OSError, ValueError):
                each.flush()
        elif kind.__module__ == "nanobind":
            return  # Extensions such as duckdb would print a warning for each object that is not collected.
    gc.freeze()
