"""CallReader: what a store of calls holds, also while other processes write it, and its damage."""

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
        with self._reading():
            return [
                SessionSummary(
                    session=decoded_session(row[4]), calls=self._count_calls(str(row[0])), end=self._end(row[0])
                )
                for row in self._rows("sessions", "run", run)
            ]

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
                    "unknown-session",
                    f"The store of calls {self._path} has no session {session!r}.",
                    "`rllm gateway sessions` lists them.",
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
                    "no-sessions",
                    f"The store of calls {self._path} has no call of session {session!r}.",
                    "`rllm gateway sessions` lists the sessions with their calls.",
                )
            return int(from_json(rows[0][3])["weight_version"])

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
            raise DamagedError(
                "damaged-store",
                f"The store of calls {self._path} is damaged: {found}.",
                f"Copy {self._path} back from a backup, or move it away: a run then makes a new store.",
            )

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
        """Verified rows, all where `value` is None, in the order in which they were stored."""
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
    """Consecutive records of a table that are lost or are not what was written."""

    table: str
    """``sessions``, ``calls``, ``deliveries``, ``rewards``, ``ends`` or ``requests``."""
    first: int
    """Number of the first such record; a table counts its records from 1, in the order in which they were stored."""
    last: int
    """Number of the last."""
    sessions: tuple[str, ...]
    """Ids of the sessions that these belong to, as far as that can still be told."""
    reason: str


def find_damage(connection: sqlite3.Connection) -> list[Damage]:
    """See `CallReader.check`. Whoever calls it has begun a transaction."""
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
        # Numbers that the index does not have are of sessions that were pruned.
        faults = {number: reason for number, reason in faults.items() if number in owners}
        faults |= dict.fromkeys(owners.keys() - looked_at.keys(), "it is not there")
        unknown = looked_at.keys() - owners.keys()
        faults |= {number: "its index does not have it" for number in unknown if not looked_at[number]}
    yield from _ranges(table, faults, owners)


def _ranges(table: str, faults: Mapping[int, str], owners: Mapping[int, str]) -> Iterator[Damage]:
    """Neighbours with one reason, together."""
    neighbours = groupby(enumerate(sorted(faults)), lambda place: (place[1] - place[0], faults[place[1]]))
    for (_, reason), places in neighbours:
        numbers = [number for _, number in places]
        sessions = tuple(sorted({owners[number] for number in numbers if owners.get(number)}))
        yield Damage(table=table, first=numbers[0], last=numbers[-1], sessions=sessions, reason=reason)


def _looked_at(connection: sqlite3.Connection, table: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Numbers from `first` to `last` that are there or cannot be read, with what is wrong: empty where nothing is."""
    for start in range(first, last + 1, AT_ONCE):
        yield from _halved(connection, table, start, min(start + AT_ONCE - 1, last))


def _halved(connection: sqlite3.Connection, table: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """The same of few numbers, in parts where they cannot be read together."""
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
    """Session by number, from the index alone; empty text where the table has none."""
    session = {"sessions": "id", "requests": "''"}.get(table, "session")
    # In the order of the index, which holds all that is asked for: the table is not touched.
    order = {"sessions": "id", "requests": "digest"}.get(table, "session")
    query = f"SELECT number, {session} FROM {table} INDEXED BY {table}_known ORDER BY {order}"
    return dict(connection.execute(query).fetchall())
