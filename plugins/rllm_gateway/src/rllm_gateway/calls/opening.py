"""Opening the file of a store: made whole or not at all, known by its marks, and still in its place."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rllm_core.files import sync_directory, sync_file
from rllm_gateway.calls import schema
from rllm_gateway.calls.rows import DamagedError, StoreError

BUSY_SECONDS = 60.0
"""How long a commit waits for those of other processes."""
PRIVATE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Modes of a store and of a folder that is made for it: nobody else reads what was said. Its logs have the store's."""
_MALFORMED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def connect_to_write(path: Path) -> sqlite3.Connection:
    """A connection in which a commit is on disk when it returns. Makes the store where there is none.

    Raises:
        StoreError: it cannot be made or written, is something else, or is of a newer schema.
    """
    _reject_no_file(path)
    try:
        # The log first: it is made after the store.
        if path.with_name(f"{path.name}-wal").exists() and not path.exists():
            raise StoreError(
                "damaged-store",
                f"{path} is missing, and its write-ahead log {path.name}-wal is there.",
                f"Copy {path.name} back from a backup, or run: mv {path}-wal {path}-wal.old",
            )
        if not path.exists():
            _make(path)
    except OSError as error:
        raise StoreError(
            "not-writable", f"No store of calls can be made at {path}: {error.strerror}.", "Choose another path."
        ) from error
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise StoreError(
            "not-writable",
            f"You may not write the store of calls {path}.",
            f"Run: chmod u+rw {path}. Or choose a new file with rllm.sdk.store.path.",
        )
    with failures(path, "opened"):
        connection = _connect(path, "rw")
        with _closed_if_refused(connection):
            if _require_version(connection, path) < schema.VERSION:
                _upgrade(connection)
            # FULL: the log is synced with every commit, or an acknowledged row is lost with the machine.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that writes nothing. A store of an older schema is brought to this one before.

    Raises:
        StoreError: there is none, it cannot be read, is something else, or is of a newer schema.
    """
    _reject_no_file(path)
    if not path.exists():
        raise StoreError("store-not-found", f"There is no store of calls at {path}.", "Check the path.")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise StoreError("file-unreadable", f"You may not read the store of calls {path}.", f"Run: chmod u+r {path}")
    with failures(path, "opened"):
        connection = _connect(path, "ro")
        with _closed_if_refused(connection):
            version = _require_version(connection, path)
        if version == schema.VERSION:
            return connection
    connection.close()
    connect_to_write(path).close()
    return connect_to_read(path)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written inside, or nothing. Waits for other processes before it begins."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # Some failures have ended it already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def failures(path: Path, done: str) -> Iterator[None]:
    """Errors of SQLite as ours. `done` is what could not be done, such as ``read``."""
    try:
        yield
    except sqlite3.Error as error:
        raise failure(path, done, error) from error


def failure(path: Path, done: str, error: sqlite3.Error) -> StoreError:
    """The `StoreError` of an error of SQLite."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(_MALFORMED):
        return DamagedError(
            "damaged-store",
            f"The store of calls {path} cannot be {done}: {error}.",
            f"Copy {path} back from a backup, or move it away: a run then makes a new store.",
        )
    hint = f"Other processes have written it for {BUSY_SECONDS:.0f} s." if name.startswith("SQLITE_BUSY") else ""
    return StoreError("store-failed", f"The store of calls {path} cannot be {done}: {error}.", hint)


def _make(path: Path) -> None:
    """Make an empty store under another name, and link it here: others find none, or a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        # SQLite does not say why it cannot make a file.
        beside.touch(mode=PRIVATE)
        with failures(path, "made"), closing(sqlite3.connect(beside, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.executescript(schema.TABLES)
            connection.execute("PRAGMA journal_mode = WAL")
        sync_file(beside)
        path.hardlink_to(beside)
    except FileExistsError:
        # Another process was faster: its store is as good.
        return
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """A connection that begins no transaction by itself; threads take turns by themselves."""
    place = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)


def _require_version(connection: sqlite3.Connection, path: Path) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != schema.APPLICATION:
        raise StoreError(
            "wrong-file-type", f"{path} is a database of something else than model calls.", "Choose another path."
        )
    if version > schema.VERSION:
        raise StoreError(
            "schema-too-new",
            f"{path} has schema {version}; this rllm-record knows {schema.VERSION}.",
            "Install a newer rllm-record.",
        )
    return int(version)


def _upgrade(connection: sqlite3.Connection) -> None:
    """In one transaction; another process may have done it meanwhile."""
    with transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for older in range(version, schema.VERSION):
            for statement in schema.UPGRADES[older]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {schema.VERSION}")


def _reject_no_file(path: Path) -> None:
    if path.is_dir():
        raise StoreError("not-a-file", f"{path} is a folder.", "Name a file in it.")
    if path.exists() and not path.is_file():
        # SQLite would wait forever for a program that writes into the pipe.
        raise StoreError(
            "not-a-file", f"{path} is a pipe or a device, not a file.", "Name a store of calls, or a new file."
        )


@contextmanager
def _closed_if_refused(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


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
            "store-replaced",
            f"The store of calls {self._path} {what} while it was open.",
            "Leave its files alone during a run. Start the run or the gateway again.",
        )
