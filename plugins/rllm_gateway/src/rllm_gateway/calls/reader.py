"""`CallReader`: read a store of calls, also while other processes write it, and find its damaged records."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rllm_gateway.calls.encoding import agrees, decoded_call, decoded_session, from_json
from rllm_gateway.calls.opening import connect_to_read, failures
from rllm_gateway.calls.rows import (
    CallRow,
    DamagedError,
    EndRow,
    RewardRow,
    SessionSummary,
    StoredSession,
    UnknownSessionError,
)
from rllm_gateway.calls.schema import COLUMNS


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
        """Open a store for reading. A store with an older schema is upgraded.

        Raises:
            StoreError: the store does not exist, cannot be read, or was written by a newer rllm-gateway.
        """
        return cls(path, connect_to_read(path))

    def sessions(self, run: str | None = None) -> list[SessionSummary]:
        """Return the sessions of a run, or of all runs, in the order in which they were opened.

        Raises:
            DamagedError: a row is damaged.
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
            UnknownSessionError: the session does not exist.
            DamagedError: one of its rows is damaged.
            StoreError: the store cannot be read.
        """
        with self._reading():
            rows = self._rows("sessions", "id", session)
            if not rows:
                raise UnknownSessionError(
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

    def first_version(self, session: str) -> int:
        """Return the weight version of a session's first call. Only this call is read.

        Raises:
            UnknownSessionError: the session does not exist, or has no calls.
            DamagedError: the call is damaged.
            StoreError: the store cannot be read.
        """
        with self._reading():
            rows = self._rows("calls", "session", session, "LIMIT 1")
            if not rows:
                raise UnknownSessionError(
                    "no-sessions",
                    f"The store of calls {self._path} has no call of session {session!r}.",
                    "List the sessions and the number of their calls with `rllm gateway sessions`.",
                )
            return int(from_json(rows[0][3])["weight_version"])

    def check(self) -> list[Damage]:
        """Compare every record with its digest, and return the damaged records. Empty if nothing is damaged.

        Records that are written meanwhile are not checked.

        Raises:
            StoreError: the store cannot be read at all.
        """
        with self._reading():
            return find_damage(self._connection)

    def require_whole(self) -> None:
        """Read the store's pages and indices, without the digests that `check` compares.

        Raises:
            DamagedError: a page is damaged.
            StoreError: the store cannot be read.
        """
        with self._reading():
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise DamagedError(
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
            raise DamagedError(
                "damaged-store",
                f"The store of calls {self._path} has lost the parameters of a request.",
                f"Copy {self._path} back from a backup, or move it away: a run then makes a new store.",
            )
        return bytes(rows[0][0])

    def _rows(self, table: str, column: str, value: Any, limit: str = "") -> Sequence[Sequence[Any]]:
        """Return the rows with `value` in `column`, after a check of their digests, in the order of their numbers.

        If `value` is None, return all rows.
        """
        where = "" if value is None else f"WHERE {column} = :value"
        query = f"SELECT number, {', '.join(COLUMNS[table])} FROM {table} {where} ORDER BY number {limit}"
        found = self._connection.execute(query, {} if value is None else {"value": value}).fetchall()
        for number, *values in found:
            if not agrees(values):
                raise DamagedError(
                    "damaged-store",
                    f"Record {number} of {table} in {self._path} is damaged.",
                    f"Copy {self._path} back from a backup, or move it away: a run then makes a new store.",
                )
        return [values for _, *values in found]


AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A range of consecutive records of a table that are lost or damaged."""

    table: str
    """``sessions``, ``calls``, ``deliveries``, ``rewards``, ``ends`` or ``requests``."""
    first: int
    """Number of the first damaged record. Records of a table are numbered from 1, in the order of their storage."""
    last: int
    """Number of the last damaged record."""
    sessions: tuple[str, ...]
    """Ids of the sessions that the records belong to, if the index still has them."""
    reason: str
    """Description of the damage."""


def find_damage(connection: sqlite3.Connection) -> list[Damage]:
    """Find damaged records. See `CallReader.check`. The caller must have begun a transaction."""
    return [damage for table in COLUMNS for damage in _damage_of(connection, table)]


def _damage_of(connection: sqlite3.Connection, table: str) -> Iterator[Damage]:
    top = _last_number(connection, table)
    looked_at = dict(_looked_at(connection, table, 1, top))
    faults = {number: reason for number, reason in looked_at.items() if reason}
    owners = dict[int, str]()
    try:
        owners = _owners(connection, table)
    except sqlite3.DatabaseError as error:
        yield Damage(table=table, first=1, last=top, sessions=(), reason=f"its index cannot be read: {error}")
    else:
        # If the index does not have a number, its session was pruned.
        faults = {number: reason for number, reason in faults.items() if number in owners}
        faults |= dict.fromkeys(owners.keys() - looked_at.keys(), "it is not there")
        unknown = looked_at.keys() - owners.keys()
        faults |= {number: "its index does not have it" for number in unknown if not looked_at[number]}
    yield from _ranges(table, faults, owners)


def _ranges(table: str, faults: Mapping[int, str], owners: Mapping[int, str]) -> Iterator[Damage]:
    """Merge neighbouring damaged records that have the same reason."""
    neighbours = groupby(enumerate(sorted(faults)), lambda place: (place[1] - place[0], faults[place[1]]))
    for (_, reason), places in neighbours:
        numbers = [number for _, number in places]
        sessions = tuple(sorted({owners[number] for number in numbers if owners.get(number)}))
        yield Damage(table=table, first=numbers[0], last=numbers[-1], sessions=sessions, reason=reason)


def _looked_at(connection: sqlite3.Connection, table: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Yield each record's number from `first` to `last`, with a description of its damage.

    The description is empty if the record is not damaged. Numbers without a record are skipped.
    """
    for start in range(first, last + 1, AT_ONCE):
        yield from _halved(connection, table, start, min(start + AT_ONCE - 1, last))


def _halved(connection: sqlite3.Connection, table: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Check a small range as `_looked_at` does. If it cannot be read at once, split it in halves."""
    query = f"SELECT number, {', '.join(COLUMNS[table])} FROM {table} WHERE number BETWEEN ? AND ?"
    try:
        rows = connection.execute(query, (first, last)).fetchall()
    except sqlite3.DatabaseError as error:
        if first == last:
            yield first, f"it cannot be read: {error}"
            return
        middle = (first + last) // 2
        yield from _halved(connection, table, first, middle)
        yield from _halved(connection, table, middle + 1, last)
        return
    for number, *values in rows:
        yield number, "" if agrees(values) else "it is not what was written"


def _last_number(connection: sqlite3.Connection, table: str) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return int(row[0]) if row else 0


def _owners(connection: sqlite3.Connection, table: str) -> dict[int, str]:
    """Return number -> session id, read from the index only. The id is empty if the table has no sessions."""
    session = {"sessions": "id", "requests": "''"}.get(table, "session")
    # Read in the order of the index. The index contains both columns, so SQLite does not read the table itself.
    order = {"sessions": "id", "requests": "digest"}.get(table, "session")
    query = f"SELECT number, {session} FROM {table} INDEXED BY {table}_known ORDER BY {order}"
    return dict(connection.execute(query).fetchall())
