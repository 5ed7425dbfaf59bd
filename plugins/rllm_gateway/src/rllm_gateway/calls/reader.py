"""CallReader: what a store of calls holds, also while other processes write it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rllm_gateway.calls.damage import Damage, find_damage
from rllm_gateway.calls.encoding import agrees, decoded_call, from_json
from rllm_gateway.calls.errors import DamagedError, UnknownSessionError
from rllm_gateway.calls.opening import connect_to_read, failures
from rllm_gateway.calls.rows import CallRow, EndRow, RewardRow, SessionRow
from rllm_gateway.calls.schema import COLUMNS
from rllm_gateway.calls.session import SessionSummary, StoredSession


class CallReader:
    """Reads a store. Each method sees the store at one instant, blocks, and may be called in any thread.

    A reader never keeps a writer waiting.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use `open`."""
        self._path = path
        self._connection = connection
        self._turn = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a store for reading. One of an older schema is brought to this one.

        Raises:
            StoreError: there is none at `path`, it cannot be read, or a newer rllm-record wrote it.
        """
        return cls(path, connect_to_read(path))

    def sessions(self, run: str | None = None) -> list[SessionSummary]:
        """Sessions of a run, or of all, in the order in which they were opened.

        Raises:
            DamagedError: a row is not what was written.
            StoreError: they cannot be read.
        """
        return self._summaries("run", run)

    def session(self, session: str) -> StoredSession:
        """A session, its calls, rewards and end.

        Raises:
            UnknownSessionError: there is no such session.
            DamagedError: a row of it is not what was written.
            StoreError: it cannot be read.
        """
        with self._reading():
            rows = self._rows("sessions", "id", session)
            if not rows:
                raise UnknownSessionError(
                    f"The store of calls {self._path} has no session {session!r}.",
                    "`rllm gateway sessions` lists them.",
                )
            delivered = {row[1] for row in self._rows("deliveries", "session", session)}
            calls = self._rows("calls", "session", session)
            requests = {digest: self._request(digest) for digest in {row[2] for row in calls}}
            return StoredSession(
                session=SessionRow(**from_json(rows[0][4])),
                calls=tuple(decoded_call(row, requests[row[2]], row[1] in delivered) for row in calls),
                rewards=tuple(RewardRow(**from_json(row[1])) for row in self._rows("rewards", "session", session)),
                end=self._end(session),
            )

    def calls(self, session: str) -> tuple[CallRow, ...]:
        """Calls of a session, in the order in which they were stored. Raises as `session` does."""
        return self.session(session).calls

    def first_version(self, session: str) -> int:
        """Return the weight version of a session's first call; only this call is read.

        Raises:
            UnknownSessionError: there is no call of such a session.
            DamagedError: the call is not what was written.
            StoreError: it cannot be read.
        """
        with self._reading():
            rows = self._rows("calls", "session", session, "LIMIT 1")
            if not rows:
                raise UnknownSessionError(
                    f"The store of calls {self._path} has no call of session {session!r}.",
                    "`rllm gateway sessions` lists the sessions with their calls.",
                )
            return int(from_json(rows[0][3])["weight_version"])

    def session_of_key(self, key_hash: str) -> SessionSummary | None:
        """The newest session that was opened with this hash of a key; None: there is none.

        Raises:
            DamagedError: its row is not what was written.
            StoreError: it cannot be read.
        """
        return next(reversed(self._summaries("key_hash", key_hash)), None)

    def check(self) -> list[Damage]:
        """Read every record and compare it with its digest. Empty: nothing is damaged.

        What is written meanwhile is not looked at.

        Raises:
            StoreError: the store cannot be read at all.
        """
        with self._reading():
            return find_damage(self._connection)

    def require_whole(self) -> None:
        """Read the store's pages and indices, without the digests that `check` compares.

        Raises:
            DamagedError: a page is not what was written.
            StoreError: the store cannot be read.
        """
        with self._reading():
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise DamagedError(f"The store of calls {self._path} is damaged: {found}.", "Restore it from a copy.")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One instant of the store: what is committed meanwhile is not seen."""
        with self._turn, failures(self._path, "read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def _summaries(self, column: str, value: str | None) -> list[SessionSummary]:
        with self._reading():
            return [
                SessionSummary(
                    session=SessionRow(**from_json(row[4])), calls=self._count_calls(str(row[0])), end=self._end(row[0])
                )
                for row in self._rows("sessions", column, value)
            ]

    def _count_calls(self, session: str) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM calls WHERE session = ?", (session,)).fetchone()
        return int(count)

    def _end(self, session: Any) -> EndRow | None:
        return next((EndRow(**from_json(row[1])) for row in self._rows("ends", "session", session)), None)

    def _request(self, digest: bytes) -> bytes:
        rows = self._rows("requests", "digest", digest)
        if not rows:
            raise DamagedError(
                f"The store of calls {self._path} has lost the parameters of a request.", "Restore it from a copy."
            )
        return bytes(rows[0][0])

    def _rows(self, table: str, column: str, value: Any, limit: str = "") -> Sequence[Sequence[Any]]:
        """Verified rows, all where `value` is None, in the order in which they were stored."""
        where = "" if value is None else f"WHERE {column} = :value"
        query = f"SELECT number, {', '.join(COLUMNS[table])} FROM {table} {where} ORDER BY number {limit}"
        found = self._connection.execute(query, {} if value is None else {"value": value}).fetchall()
        for number, *values in found:
            if not agrees(values):
                raise DamagedError(
                    f"Record {number} of {table} in {self._path} is damaged.", "Restore the file from a copy."
                )
        return [values for _, *values in found]
