"""CallStore: rows that are in the store once they are acknowledged."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self, TypeAlias

from rllm_gateway.calls.encoding import Record, encoded
from rllm_gateway.calls.opening import Presence, connect_to_read, connect_to_write, failure, failures, transaction
from rllm_gateway.calls.reader import CallReader
from rllm_gateway.calls.rows import DeliveryRow, DuplicateError, Row, SealedError, StoreError, UnknownSessionError
from rllm_gateway.calls.schema import INSERT

_REFUSALS: dict[str, Callable[[str, Record], StoreError]] = {
    "SQLITE_CONSTRAINT_UNIQUE": lambda where, record: DuplicateError(
        "duplicate-row", f"{where} already has {_named(record)}."
    ),
    "SQLITE_CONSTRAINT_FOREIGNKEY": lambda where, record: UnknownSessionError(
        "unknown-session", f"{where} does not have what {_named(record)} belongs to."
    ),
    "SQLITE_CONSTRAINT_TRIGGER": lambda where, record: SealedError(
        "session-ended", f"{where}: session {record.values[0]!r} has ended, and takes no more."
    ),
}
_Outcome: TypeAlias = "tuple[asyncio.Future[None], StoreError | None]"


@dataclass(frozen=True, eq=False)
class _Item:
    """What is to be written for a row, and who waits for it."""

    records: tuple[Record, ...]
    future: asyncio.Future[None] | None


class GroupWriter:
    """Writes rows of a store in the order in which they come.

    Args:
        path: the store.

    Raises:
        StoreError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect_to_write(path)
        try:
            self._presence = Presence(path)
        except BaseException:
            self._connection.close()
            raise
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rllm-record", daemon=True)
        self._thread.start()

    def submit(self, records: tuple[Record, ...], future: asyncio.Future[None] | None) -> None:
        """Write `records` with the next commit; `future`, of any event loop, has the outcome.

        Raises:
            StoreError: the store is closed.
        """
        with self._closing:
            if self._closed:
                raise StoreError("store-failed", f"The store of calls {self._path} is closed.", "Open it again.")
            self._queue.put(_Item(records, future))

    def close(self) -> None:
        """Wait until everything is written."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        group: Sequence[_Item] = ()
        try:
            while group := self._next_group():
                _settle(self._commit(group))
        except BaseException:
            # A fault of this class: nobody waits for a thread that is gone.
            with self._closing:
                self._closed = True
            lost = StoreError(
                "store-failed",
                f"The writer of {self._path} has failed.",
                "The error before this one says why. Open the store again.",
            )
            _settle([(item.future, lost) for item in (*group, *self._waiting()) if item.future])
            raise
        finally:
            self._connection.close()

    def _next_group(self) -> list[_Item]:
        """What waits, at least one item; empty once the store is closed and nothing is left."""
        first = self._queue.get()
        return [] if first is None else [first, *self._waiting()]

    def _waiting(self) -> list[_Item]:
        items = list[_Item]()
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return items
            if item is None:
                # For the next turn.
                self._queue.put(None)
                return items
            items.append(item)

    def _commit(self, group: Sequence[_Item]) -> list[_Outcome]:
        """One transaction. A row that is refused leaves the others alone; a commit that fails fails all."""
        outcomes = list[_Outcome]()
        try:
            self._presence.check()
            with transaction(self._connection):
                for item in group:
                    refused = self._insert(item.records)
                    if item.future is not None:
                        outcomes.append((item.future, refused))
            # Again: a file that went away before the commit has these rows.
            self._presence.check()
        except (sqlite3.Error, StoreError) as error:
            failed = error if isinstance(error, StoreError) else failure(self._path, "written", error)
            return [(item.future, failed) for item in group if item.future is not None]
        return outcomes

    def _insert(self, records: tuple[Record, ...]) -> StoreError | None:
        """Why the row is refused; None: it is not."""
        for record in records:
            try:
                self._connection.execute(INSERT[record.table], record.values)
            except sqlite3.IntegrityError as error:
                refusal = _REFUSALS.get(error.sqlite_errorname)
                where = f"The store of calls {self._path}"
                return refusal(where, record) if refusal else failure(self._path, "written", error)
            except (sqlite3.DataError, sqlite3.InterfaceError, OverflowError, UnicodeError) as error:
                return StoreError(
                    "store-failed",
                    f"{_named(record)} cannot be stored: {error}.",
                    "Make room or fix the permissions of the store.",
                )
        return None


def _named(record: Record) -> str:
    what = record.table.removesuffix("s").replace("deliverie", "delivery")
    return (
        f"the {what} {record.values[1]!r} of {record.values[0]!r}"
        if what in ("call", "delivery")
        else (f"the {what} {record.values[0]!r}" if what == "session" else f"the {what} of {record.values[0]!r}")
    )


def _settle(outcomes: Sequence[_Outcome]) -> None:
    """Tell those who wait, each event loop once."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[_Outcome]](list)
    for outcome in outcomes:
        by_loop[outcome[0].get_loop()].append(outcome)
    for loop, its in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, its)
        except RuntimeError:
            # The loop is closed: nobody waits in it.
            continue


def _resolve(outcomes: Sequence[_Outcome]) -> None:
    for future, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


SESSIONS_AT_ONCE = 50
PAGES_AT_ONCE = 2000
"""Those who write wait no longer than for so many."""
_CHOSEN = (
    "SELECT id FROM sessions WHERE (:run IS NULL OR run = :run) AND (:before IS NULL OR opened < :before)"
    f" ORDER BY number LIMIT {SESSIONS_AT_ONCE}"
)


def prune(path: Path, run: str | None, before: float | None) -> int:
    """See `CallStore.prune`."""
    if run is None and before is None:
        raise ValueError("say which sessions: of a run, or opened before a time")
    chosen, deleted = {"run": run, "before": before}, 0
    with closing(connect_to_write(path)) as connection, failures(path, "pruned"):
        while True:
            with transaction(connection):
                sessions = connection.execute(_CHOSEN, chosen).fetchall()
                connection.executemany("DELETE FROM sessions WHERE id = ?", sessions)
            if not sessions:
                break
            deleted += len(sessions)
        with transaction(connection):
            connection.execute("DELETE FROM requests WHERE digest NOT IN (SELECT request FROM calls)")
        while connection.execute("PRAGMA freelist_count").fetchone()[0]:
            # A script is run to its end; `execute` frees one page.
            connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    return deleted


class CallStore(CallReader):
    """A store of calls: one file, which several processes may write.

    A thread of the store writes. What gathers while it commits is its next commit, so that a commit is shared by all
    who wait: with many writers a row costs a small part of one.
    """

    _writer: GroupWriter

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the store at `path`, or make one, with the folders above it. An older schema is brought to this one.

        Raises:
            StoreError: it cannot be written, it is something else, or a newer rllm-record wrote it.
        """
        writer = GroupWriter(path)
        try:
            store = cls(path, connect_to_read(path))
        except BaseException:
            writer.close()
            raise
        store._writer = writer
        return store

    async def add(self, row: Row) -> None:
        """Return once the commit that holds `row` is on disk. Rows are stored in the order in which they are added.

        Who is cancelled while they wait does not learn whether the row is stored.

        Raises:
            DuplicateError: the store has a session with this id, the session a call with this id, or an end.
            UnknownSessionError: there is no session as the row says, or, for a delivery, no call.
            SealedError: the session has ended.
            StoreError: it could not be written.
        """
        future = asyncio.get_running_loop().create_future()
        self._writer.submit(encoded(row), future)
        await future

    def note(self, row: DeliveryRow) -> None:
        """Store `row` with one of the next commits, without waiting for it. One that cannot be stored is left out.

        Raises:
            StoreError: the store is closed, or `row` cannot be stored.
        """
        self._writer.submit(encoded(row), None)

    def prune(self, *, run: str | None = None, before: float | None = None) -> int:
        """Delete sessions with all that belongs to them, and give their space back. Returns how many. Blocks.

        Args:
            run: those of this run. None: of all runs.
            before: those that were opened before, in seconds of Unix time. None: all.

        Raises:
            ValueError: neither `run` nor `before` is given.
            StoreError: they cannot be deleted. A session is deleted whole or not at all.
        """
        return prune(self._path, run, before)

    def close(self) -> None:
        """Wait until everything that was added is stored, then let go of the file."""
        # The last connection that is closed clears the log away, and a reading one cannot.
        super().close()
        self._writer.close()
