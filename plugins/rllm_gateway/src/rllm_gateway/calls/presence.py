"""Whether the files of an open store are still in their place."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from rllm_gateway.calls.errors import StoreError

LOGS = ("-wal", "-shm")
"""Files that SQLite keeps next to an open store. It deletes them only with the last connection."""


class Presence:
    """The files of a store that this process has open.

    SQLite writes to files that were deleted or replaced without an error. These rows cannot be found again.

    Args:
        path: of the store. A connection to it is open.

    Raises:
        StoreError: a file is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = (path, *(path.with_name(f"{path.name}{log}") for log in LOGS))
        self._lost: StoreError | None = None
        self._opened = self._seen()

    def check(self) -> None:
        """Raise StoreError if a file was deleted, replaced or cut off, and from then on always."""
        if self._lost is not None:
            raise self._lost
        try:
            seen = self._seen()
            for before, now in zip(self._opened, seen, strict=True):
                if not os.path.samestat(before, now):
                    raise self._error("was deleted or replaced")
            self._check_sizes(seen)
        except StoreError as error:
            self._lost = error
            raise
        self._opened = seen

    def _seen(self) -> list[os.stat_result]:
        try:
            return [file.stat() for file in self._files]
        except OSError as error:
            raise self._error("was deleted or replaced") from error

    def _check_sizes(self, seen: list[os.stat_result]) -> None:
        """Raise StoreError if a file was truncated. Only the store may shrink, when another process prunes it."""
        store, log, _ = (now.st_size < before.st_size for before, now in zip(self._opened, seen, strict=True))
        if log or (store and not (seen[0].st_size and self._is_whole())):
            raise self._error("was cut off")

    def _is_whole(self) -> bool:
        """Whether a connection that has read nothing yet finds all pages."""
        try:
            # Opened with SQLite, because closing the file directly would release this process's locks on it.
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.Error:
            return False

    def _error(self, what: str) -> StoreError:
        return StoreError(
            f"The store of calls {self._path} {what} while it was open.",
            "Leave its files alone during a run. Start the run or the gateway again.",
        )
