"""`CallStore`: write rows to a store. An acknowledged row is on disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self, TypeAlias

from rllm_gateway.calls.opening import Presence, connect_to_read, connect_to_write, failure, failures, transaction
from rllm_gateway.calls.reader import CallReader
from rllm_gateway.calls.rows import DeliveryRow, Row, StoreError
from rllm_gateway.calls.tables import INSERT, Record, encode_row

_Outcome: TypeAlias = "tuple[asyncio.Future[None], StoreError | None]"


@dataclass(frozen=True, eq=False)
class _Item:
    """The records of a row, and the future of the caller that waits for them. None if no caller waits."""

    records: tuple[Record, ...]
    future: asyncio.Future[None] | None


class GroupWriter:
    """Writes rows to a store in the order of their submission.

    Args:
        path: the store.

    Raises:
        StoreError: the store cannot be written.
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
        """Write `records` with the next commit, then set `future`, which may belong to any event loop.

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
            # This is a bug in this class. Fail all waiting futures, because this thread ends and cannot set them later.
            with self._closing:
                self._closed = True
            lost = StoreError(
                "store-failed",
                f"The writer of {self._path} has failed.",
                "Read the previous error for the reason, then open the store again.",
            )
            _settle([(item.future, lost) for item in (*group, *self._waiting()) if item.future])
            raise
        finally:
            self._connection.close()

    def _next_group(self) -> list[_Item]:
        """Return the waiting items, at least one. Empty if the store is closed and everything is written."""
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
                # Keep the end mark for the next call.
                self._queue.put(None)
                return items
            items.append(item)

    def _commit(self, group: Sequence[_Item]) -> list[_Outcome]:
        """Write a group of items in one transaction.

        If the store rejects a row, the others are still written. If the commit fails, all rows fail.
        """
        outcomes = list[_Outcome]()
        try:
            self._presence.check()
            with transaction(self._connection):
                for item in group:
                    refused = self._insert(item.records)
                    if item.future is not None:
                        outcomes.append((item.future, refused))
            # Check again. If a file was deleted before the commit, these rows are lost.
            self._presence.check()
        except (sqlite3.Error, StoreError) as error:
            failed = error if isinstance(error, StoreError) else failure(self._path, "written", error)
            return [(item.future, failed) for item in group if item.future is not None]
        return outcomes

    def _insert(self, records: tuple[Record, ...]) -> StoreError | None:
        """Insert the records of a row. Return the error if the store rejects it, else None."""
        for record in records:
            try:
                self._connection.execute(INSERT[record.table], record.values)
            except (
                sqlite3.IntegrityError,
                sqlite3.DataError,
                sqlite3.InterfaceError,
                OverflowError,
                UnicodeError,
            ) as error:
                return self._rejection(record, error)
        return None

    def _rejection(self, record: Record, error: Exception) -> StoreError:
        what = f"The store of calls {self._path} rejects a record of {record.table} ({record.values[0]!r:.100})"
        match getattr(error, "sqlite_errorname", ""):
            case "SQLITE_CONSTRAINT_UNIQUE":
                hint = "This is a bug; please report it."
                return StoreError("duplicate-row", f"{what}: it has this record already.", hint)
            case "SQLITE_CONSTRAINT_FOREIGNKEY":
                hint = "Check if the session was deleted with `rllm gateway prune`."
                return StoreError("unknown-session", f"{what}: it lacks the record's session or call.", hint)
            case "SQLITE_CONSTRAINT_TRIGGER":
                return StoreError("session-ended", f"{what}: its session has ended.", "Open a new session.")
            case _:
                return StoreError("store-failed", f"{what}: {error}.", "This is a bug; please report it.")


def _settle(outcomes: Sequence[_Outcome]) -> None:
    """Set the futures of the callers that wait. Each event loop is woken once."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[_Outcome]](list)
    for outcome in outcomes:
        by_loop[outcome[0].get_loop()].append(outcome)
    for loop, its in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, its)
        except RuntimeError:
            # The loop is closed, so no caller waits in it.
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
"""Maximum number of pages that are freed at once, so that writers do not wait long."""
_CHOSEN = (
    "SELECT id FROM sessions WHERE (:run IS NULL OR run = :run) AND (:before IS NULL OR opened < :before)"
    f" ORDER BY number LIMIT {SESSIONS_AT_ONCE}"
)


def prune(path: Path, run: str | None, before: float | None) -> int:
    """See `CallStore.prune`."""
    if run is None and before is None:
        raise ValueError("select the sessions to delete: set `run`, `before`, or both")
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
            # `executescript` runs the vacuum to its end, but `execute` would free only one page.
            connection.executescript(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    return deleted


class CallStore(CallReader):
    """A store of calls. It is one file, which several processes may write.

    A thread writes the rows. Rows that arrive during a commit are written together in the next commit. So with many
    concurrent calls, a row costs only a small part of a commit.
    """

    _writer: GroupWriter

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the store at `path`. If it does not exist, create it and its parent directories.

        Raises:
            StoreError: the store cannot be written, is a different kind of file, or was written by a different version
                of rllm-gateway.
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

        If the caller is cancelled while it waits, the row may or may not be stored.

        Raises:
            StoreError: the row could not be written (``store-failed``). Or the store has it (``duplicate-row``), lacks
                its session or call (``unknown-session``), or its session has ended (``session-ended``).
        """
        future = asyncio.get_running_loop().create_future()
        self._writer.submit(encode_row(row), future)
        await future

    def note(self, row: DeliveryRow) -> None:
        """Store `row` with one of the next commits, without waiting for it. If that commit fails, the row is lost.

        Raises:
            StoreError: the store is closed, or `row` cannot be encoded.
        """
        self._writer.submit(encode_row(row), None)

    def prune(self, *, run: str | None = None, before: float | None = None) -> int:
        """Delete sessions with their calls, rewards and ends, and free their disk space. Blocks.

        Args:
            run: delete only sessions of this run. None: of all runs.
            before: delete only sessions opened before this Unix time, in seconds. None: no limit.

        Returns:
            The number of deleted sessions.

        Raises:
            ValueError: neither `run` nor `before` is set.
            StoreError: sessions cannot be deleted. A session is deleted completely or not at all.
        """
        return prune(self._path, run, before)

    def close(self) -> None:
        """Wait until all added rows are stored, then close the file."""
        # The last open connection deletes SQLite's log. A read-only connection cannot do this, so close it first.
        super().close()
        self._writer.close()


SECONDS_BETWEEN_NOTES = 1.0
"""Maximum time that a delivery waits if no other row is stored. A separate commit per delivery would delay the next
call."""


class RowLog:
    """Writer of a gateway's rows. All methods must be called on one event loop."""

    def __init__(self, store: CallStore | Path) -> None:
        """Use `store`. If it is a path, it is opened with the first row. Before that, a run may delete an old store."""
        self._store = store
        self._notes = list[DeliveryRow]()
        self._flushing: asyncio.TimerHandle | None = None

    async def add(self, *rows: Row) -> None:
        """Return once all rows are on disk.

        Raises:
            StoreError: a row cannot be stored.
        """
        self.flush()
        store = self._store = CallStore.open(self._store) if isinstance(self._store, Path) else self._store
        if len(rows) == 1:
            await store.add(rows[0])
        else:
            await asyncio.gather(*(store.add(row) for row in rows))

    def note(self, row: DeliveryRow) -> None:
        """Store a row soon, without waiting for it."""
        self._notes.append(row)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(SECONDS_BETWEEN_NOTES, self.flush)

    def flush(self) -> None:
        """Pass waiting deliveries to the store. Call it before the store is closed."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        notes, self._notes = self._notes, []
        if isinstance(self._store, Path):
            return
        for note in notes:
            # If it cannot be stored, the store lacks a delivery that the trace has, but contains nothing wrong.
            with suppress(StoreError):
                self._store.note(note)

    def close(self) -> None:
        """Wait until everything is stored, and close the file."""
        self.flush()
        if isinstance(self._store, CallStore):
            self._store.close()
