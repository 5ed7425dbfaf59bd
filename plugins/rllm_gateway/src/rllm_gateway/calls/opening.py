"""Create and open the file of a store, check its type and version, and detect if it is deleted or replaced."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rllm_core.files import sync_directory, sync_file
from rllm_gateway.calls import tables
from rllm_gateway.calls.rows import StoreError

BUSY_SECONDS = 60.0
"""Seconds that a commit waits for commits of other processes."""
PRIVATE, PRIVATE_DIRECTORY = 0o600, 0o700
"""File modes of a store and of a directory that is created for it. Other users cannot read the conversations. SQLite's
logs have the store's mode."""
_MALFORMED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


def connect_to_write(path: Path) -> sqlite3.Connection:
    """Open a store for writing, and create it if it does not exist. A commit is on disk when it returns.

    Raises:
        StoreError: the store cannot be created or written, is a different kind of file, or has a different tables.
    """
    _reject_no_file(path)
    try:
        # Look for the log first, because another process creates it after the store.
        if path.with_name(f"{path.name}-wal").exists() and not path.exists():
            raise StoreError(
                "damaged-store",
                f"{path} is missing, but its write-ahead log {path.name}-wal exists.",
                f"Copy {path.name} back from a backup, or run: mv {path}-wal {path}-wal.old",
            )
        if not path.exists():
            _make(path)
    except OSError as error:
        raise StoreError(
            "not-writable",
            f"No store of calls can be created at {path}: {error.strerror}.",
            "Set rllm.sdk.store.path, or --store of `rllm gateway serve`, to a path that you may write.",
        ) from error
    # FULL syncs the log with every commit. Otherwise a crash of the machine could lose acknowledged rows.
    return _connect(path, "rw", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON")


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a store for reading only.

    Raises:
        StoreError: the store does not exist, cannot be read, is a different kind of file, or has a different tables.
    """
    _reject_no_file(path)
    if not path.exists():
        raise StoreError(
            "store-not-found",
            f"There is no store of calls at {path}.",
            "Set --store to the directory of a run, or to the file that `rllm gateway serve` prints as `store:`.",
        )
    return _connect(path, "ro")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all writes of the context, or none of them. Waits for other processes before it begins."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # Some errors have already ended the transaction.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def failures(path: Path, done: str) -> Iterator[None]:
    """Convert errors of SQLite to `StoreError`. `done` is the participle for the message, such as ``read``."""
    try:
        yield
    except sqlite3.Error as error:
        raise failure(path, done, error) from error


def failure(path: Path, done: str, error: sqlite3.Error) -> StoreError:
    """Return the `StoreError` for an error of SQLite."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(_MALFORMED):
        return StoreError(
            "damaged-store",
            f"The store of calls {path} cannot be {done}: {error}.",
            f"Copy {path} back from a backup, or move it to a different path. A run then creates a new store.",
        )
    hint = (
        f"Other processes have been writing it for {BUSY_SECONDS:.0f} s. Stop them, then try again."
        if name.startswith("SQLITE_BUSY")
        else ""
    )
    return StoreError("store-failed", f"The store of calls {path} cannot be {done}: {error}.", hint)


def _make(path: Path) -> None:
    """Create an empty store under a temporary name, and link it. So other processes never see an incomplete store."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        # Create the file directly, because SQLite does not report why it cannot create a file.
        temporary.touch(mode=PRIVATE)
        with failures(path, "made"), closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.executescript(tables.TABLES)
            connection.execute("PRAGMA journal_mode = WAL")
        sync_file(temporary)
        path.hardlink_to(temporary)
    except FileExistsError:
        # A different process was faster. Use its store.
        return
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _connect(path: Path, mode: str, *pragmas: str) -> sqlite3.Connection:
    """Return a connection that begins no transaction by itself, after a check of the file's type and version."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with failures(path, "opened"):
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
        try:
            _require_version(connection, path)
            for pragma in pragmas:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
    return connection


def _require_version(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != tables.APPLICATION:
        raise StoreError(
            "wrong-file-type",
            f"{path} is an SQLite database, but not a store of model calls.",
            "Set --store or rllm.sdk.store.path to a store of calls, or to a new file.",
        )
    if version != tables.VERSION:
        raise StoreError(
            "schema-too-new",
            f"{path} has schema {version}, but this rllm-gateway reads and writes only schema {tables.VERSION}.",
            "Install the version of rllm-gateway that wrote it, for example: pip install --upgrade rllm-gateway",
        )


def _reject_no_file(path: Path) -> None:
    # For a pipe, SQLite would wait forever for a program that writes into it.
    if path.exists() and not path.is_file():
        raise StoreError(
            "not-a-file", f"The store of calls {path} is a directory or a pipe.", "Set the path of a file."
        )


LOGS = ("-wal", "-shm")
"""Files that SQLite keeps next to an open store. It deletes them only with the last connection."""


class Presence:
    """The files of a store that this process has open.

    SQLite writes to files that were deleted or replaced without an error. Such rows are lost.

    Args:
        path: path of the store. A connection to it must be open.

    Raises:
        StoreError: a file is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = (path, *(path.with_name(f"{path.name}{log}") for log in LOGS))
        self._lost: StoreError | None = None
        self._opened = self._stat_files()

    def check(self) -> None:
        """Raise StoreError if a file was deleted, replaced or truncated. After that, always raise it."""
        if self._lost is not None:
            raise self._lost
        try:
            seen = self._stat_files()
            for before, now in zip(self._opened, seen, strict=True):
                if not os.path.samestat(before, now):
                    raise self._error("was deleted or replaced")
            self._check_sizes(seen)
        except StoreError as error:
            self._lost = error
            raise
        self._opened = seen

    def _stat_files(self) -> list[os.stat_result]:
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
        """True if a new connection can read all pages."""
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
            "Do not change its files during a run. Start the run or the gateway again.",
        )
