"""`CallReader`: read a store of calls, also while other processes write it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rllm_core.errors import ConfigError
from rllm_gateway.calls.opening import connect_to_read, failures
from rllm_gateway.calls.rows import (
    CallRow,
    EndRow,
    RewardRow,
    SessionSummary,
    StoredSession,
    StoreError,
)
from rllm_gateway.calls.tables import COLUMNS, agrees, decoded_call, decoded_session, from_json


class CallReader:
    """Reader of a store. A reader never blocks a writer.

    Each method blocks, and may be called in any thread. It reads a snapshot of the store.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Make a reader of an open connection. Use `open` instead."""
        self._path = path
        self._connection = connection
        self._turn = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a store for reading.

        Raises:
            StoreError: the store does not exist, cannot be read, or was written by a different version of rllm-gateway.
        """
        return cls(path, connect_to_read(path))

    def sessions(self, run: str | None = None) -> list[SessionSummary]:
        """Return the sessions of a run, or of all runs, in the order in which they were opened.

        Raises:
            StoreError: a row is damaged.
            StoreError: the store cannot be read.
        """
        with self._reading():
            return [
                SessionSummary(
                    session=decoded_session(row[4]), calls=self._count_calls(str(row[0])), end=self._end(row[0])
                )
                for row in self._rows("sessions", "run", run)
            ]

    def session(self, session: str) -> StoredSession:
        """Return a session with its calls, its rewards and its end.

        Raises:
            ConfigError: the session does not exist.
            StoreError: one of its rows is damaged.
            StoreError: the store cannot be read.
        """
        with self._reading():
            rows = self._rows("sessions", "id", session)
            if not rows:
                raise ConfigError(
                    "unknown-session",
                    f"The store of calls {self._path} has no session {session!r}.",
                    "List the sessions with `rllm gateway sessions`.",
                )
            delivered = {row[1] for row in self._rows("deliveries", "session", session)}
            calls = self._rows("calls", "session", session)
            requests = {digest: self._request(digest) for digest in {row[2] for row in calls}}
            return StoredSession(
                session=decoded_session(rows[0][4]),
                calls=tuple(decoded_call(row, requests[row[2]], row[1] in delivered) for row in calls),
                rewards=tuple(RewardRow(**from_json(row[1])) for row in self._rows("rewards", "session", session)),
                end=self._end(session),
            )

    def calls(self, session: str) -> tuple[CallRow, ...]:
        """Return the calls of a session, in the order in which they were stored. Raises the errors of `session`."""
        return self.session(session).calls

    def require_whole(self) -> None:
        """Read the store's pages and indices. Digests of rows are not compared.

        Raises:
            StoreError: a page is damaged.
            StoreError: the store cannot be read.
        """
        with self._reading():
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StoreError(
                "damaged-store",
                f"The store of calls {self._path} is damaged: {found}.",
                f"Copy {self._path} back from a backup, or move it away: a run then makes a new store.",
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read a snapshot of the store. Later commits are not visible."""
        with self._turn, failures(self._path, "read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def _count_calls(self, session: str) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM calls WHERE session = ?", (session,)).fetchone()
        return int(count)

    def _end(self, session: Any) -> EndRow | None:
        return next((EndRow(**from_json(row[1])) for row in self._rows("ends", "session", session)), None)

    def _request(self, digest: bytes) -> bytes:
        rows = self._rows("requests", "digest", digest)
        if not rows:
            raise StoreError(
                "damaged-store",
                f"The store of calls {self._path} has lost the parameters of a request.",
                f"Copy {self._path} back from a backup, or move it away: a run then makes a new store.",
            )
        return bytes(rows[0][0])

    def _rows(self, table: str, column: str, value: Any) -> Sequence[Sequence[Any]]:
        """Return the rows with `value` in `column`, after a check of their digests, in the order of their numbers.

        If `value` is None, return all rows.
        """
        where = "" if value is None else f"WHERE {column} = :value"
        query = f"SELECT number, {', '.join(COLUMNS[table])} FROM {table} {where} ORDER BY number"
        found = self._connection.execute(query, {} if value is None else {"value": value}).fetchall()
        for number, *values in found:
            if not agrees(values):
                raise StoreError(
                    "damaged-store",
                    f"Record {number} of {table} in {self._path} is damaged.",
                    f"Copy {self._path} back from a backup, or move it away: a run then makes a new store.",
                )
        return [values for _, *values in found]
