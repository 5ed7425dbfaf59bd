"""`Copier`: copies the changed files of a run directory to a store, in an order that keeps the store consistent.

A checkpoint is in the store if its manifest is. It is uploaded last, after all files that the checkpoint needs. After
that, the checkpoints that the run has removed are removed, with their journal.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from rllm_core.files import write_atomically
from rllm_core.notices import say
from rllm_record.pending import PENDING
from rllm_record.run_files import CHECKPOINTS, LATEST_CHECKPOINT, MANIFEST
from rllm_record.store.places import StorePlace

STATE = ".store.json"
"""File of a local directory with the stamps of files that equal the store's objects."""
SMALL = 1 << 20
"""Maximum size of files that are copied after each change, in bytes."""
GROWTH = 8
"""A larger file is copied again when it has grown by this fraction of its size, so that the bytes of all its copies are
less than ten times its size."""
_SQLITE = b"SQLite format 3\0"
_SQLITE_LOGS = ("-wal", "-shm", "-journal")


class Stamp(NamedTuple):
    """Size in bytes and time of change of a local file, and the version of its object if the file was downloaded."""

    size: int
    changed_ns: int
    version: str = ""

    def equals(self, other: Stamp | None) -> bool:
        """True if a file with the other stamp has the same content."""
        return other is not None and self[:2] == other[:2]


UNKNOWN = Stamp(-1, -1)
"""Stamp of an object that equals no local file."""


def local_files(directory: Path) -> dict[str, Stamp]:
    """Return the stamps of a run's regular files by relative name, without hidden files and links."""
    found: dict[str, Stamp] = {}
    for place, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name[0] != "."]
        for name in names:
            path = Path(place, name)
            if name[0] == "." or path.is_symlink() or name.endswith(_SQLITE_LOGS):
                continue
            try:
                if stat.S_ISREG(path.stat().st_mode):
                    found[str(path.relative_to(directory))] = _stamp(path)
            except OSError:
                continue  # removed meanwhile
    return found


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    try:
        log = path.with_name(f"{path.name}-wal").stat()
    except FileNotFoundError:
        return Stamp(status.st_size, status.st_mtime_ns)
    return Stamp(status.st_size + log.st_size, max(status.st_mtime_ns, log.st_mtime_ns))


def checkpoint_of(name: str) -> str | None:
    """Return the checkpoint's directory of a file's relative name. None for other files."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == CHECKPOINTS and len(parts) > 2 else None


def is_in_whole_checkpoint(name: str, names: Container[str]) -> bool:
    """True if a file is in no checkpoint, or the manifest of its checkpoint is in `names`."""
    checkpoint = checkpoint_of(name)
    return checkpoint is None or f"{checkpoint}/{MANIFEST}" in names


def link_latest(directory: Path) -> None:
    """Point the link `latest` at the newest whole checkpoint, because a store has no links."""
    whole = sorted((directory / CHECKPOINTS).glob(f"step_*/{MANIFEST}"))
    if whole:
        link = directory / CHECKPOINTS / LATEST_CHECKPOINT
        link.unlink(missing_ok=True)
        link.symlink_to(whole[-1].parent.name)


def read_stamps(directory: Path) -> dict[str, Stamp]:
    """Return the stamps of files that equal their objects in the store. Empty if they are unknown."""
    try:
        stored = json.loads((directory / STATE).read_text(encoding="utf-8"))
        return {name: Stamp(*values) for name, values in stored.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_stamps(directory: Path, stamps: Mapping[str, Stamp]) -> None:
    """Write the stamps of files that equal their objects in the store."""
    write_atomically(directory / STATE, json.dumps(stamps))


class Copier:
    """Copies a run directory to a store. If a method fails, call it again.

    It only removes objects whose local files it has seen, because a user can delete local files.
    """

    def __init__(self, place: StorePlace, directory: Path, confirm: Callable[[], None] = lambda: None) -> None:
        """Prepare to copy a directory.

        Args:
            confirm: Called before each write. It raises an error if a different process has taken over the URL.
        """
        self._place, self._directory, self._confirm = place, directory, confirm
        self._copied: dict[str, Stamp] | None = None
        self._seen: set[str] = set()
        self._unreadable: set[str] = set()
        self.copied_bytes = 0

    def has_new_checkpoint(self) -> bool:
        """True if a checkpoint is not in the store yet. It only reads local files."""
        return any(name not in (self._copied or {}) for name in self._local_manifests())

    def _local_manifests(self) -> list[str]:
        manifests = (self._directory / CHECKPOINTS).glob(f"step_*/{MANIFEST}")
        return sorted((str(path.relative_to(self._directory)) for path in manifests), reverse=True)

    def copy(self, *, everything: bool = False) -> None:
        """Copy all changed files.

        Args:
            everything: True to also copy large files that have grown a little. New checkpoints imply it.

        Raises the errors of the store.
        """
        copied = self._copied = self._read_store() if self._copied is None else self._copied
        try:
            self._copy_into(copied, everything)
        finally:
            write_stamps(self._directory, {name: stamp for name, stamp in copied.items() if stamp != UNKNOWN})

    def replace(self, written: Collection[str]) -> None:
        """Remove an earlier run from the store.

        Args:
            written: names of the files and directories that a run writes. Other objects stay.
        """
        (self._directory / STATE).unlink(missing_ok=True)
        self._copied = self._read_store()
        self._remove([name for name in self._copied if name.partition("/")[0] in written])

    def _copy_into(self, copied: dict[str, Stamp], everything: bool) -> None:
        # A checkpoint that becomes whole during the walk can need files that the walk has missed.
        manifests = self._local_manifests()
        files = local_files(self._directory)
        files = {name: stamp for name, stamp in files.items() if is_in_whole_checkpoint(name, manifests)}
        self._seen.update(files)
        new = [name for name in manifests if name in files and not files[name].equals(copied.get(name))]
        everything = everything or bool(new)
        for name, stamp in files.items():
            if checkpoint_of(name) is None and (everything or _is_due(stamp, copied.get(name))):
                self._put(name, stamp)
        # A checkpoint that the run saves again is not whole while it is copied, so it comes after the others.
        for manifest in sorted(new, key=lambda name: name in copied):
            self._put_checkpoint(manifest, files)
        self._remove_old(copied)

    def _remove_old(self, copied: Mapping[str, Stamp]) -> None:
        """Remove checkpoints and journal files that the run has removed, if its newest checkpoint is stored."""
        now = local_files(self._directory)
        newest = max((name for name in copied if _is_manifest(name)), default=None)
        if newest is None or newest not in now:
            return  # while an upload is slow, the run can remove the only checkpoints that the store has
        kinds = (CHECKPOINTS, "journal", PENDING)
        self._remove([name for name in self._seen & copied.keys() - now.keys() if name.split("/")[0] in kinds])

    def _read_store(self) -> dict[str, Stamp]:
        """Return the stamps of all objects. Objects that a different process has changed are unknown."""
        known = read_stamps(self._directory)
        hidden = (name for name in self._place.objects() if any(part[:1] == "." for part in name.split("/")))
        objects = self._place.objects().keys() - set(hidden)
        return {name: known.get(name, UNKNOWN) for name in objects}

    def _put_checkpoint(self, manifest: str, files: Mapping[str, Stamp]) -> None:
        """Copy a checkpoint, its manifest last. If it is removed meanwhile, its manifest is not copied."""
        assert self._copied is not None
        try:
            content = (self._directory / manifest).read_bytes()
        except OSError as error:
            self._warn(manifest, error)
            return
        if manifest in self._copied and self._place.read(manifest) != content:
            self._remove([manifest])
        for name, stamp in files.items():
            is_inside = checkpoint_of(name) == checkpoint_of(manifest)
            if is_inside and name != manifest and not self._put(name, stamp):
                return
        self._put(manifest, files[manifest])

    def _put(self, name: str, stamp: Stamp) -> bool:
        """Copy a file if its object is different. Return False if it was removed or cannot be read."""
        assert self._copied is not None
        path = self._directory / name
        if stamp.equals(self._copied.get(name)):
            return True
        with ExitStack() as stack:
            try:
                file = stack.enter_context(_consistent_file(path))
            except (OSError, sqlite3.Error) as error:
                self._warn(name, error)
                return False
            self._confirm()
            try:
                self._place.files.put_file(str(file), self._place.object_path(name))
            except FileNotFoundError:
                if path.exists():
                    raise  # the store's own error
                return False
        self._copied[name] = stamp
        self.copied_bytes += stamp.size
        return True

    def _warn(self, name: str, error: Exception) -> None:
        """Print once that a file cannot be read. A file that was removed meanwhile is no problem."""
        if not isinstance(error, FileNotFoundError) and name not in self._unreadable:
            self._unreadable.add(name)
            say(f"warning: {self._directory / name} cannot be read, so {self._place.url} lacks it: {error}")

    def _remove(self, names: Iterable[str]) -> None:
        """Remove objects, the manifests of checkpoints first and files outside of checkpoints last."""
        assert self._copied is not None

        def order(name: str) -> tuple[bool, bool, str]:
            return checkpoint_of(name) is None, not name.endswith(f"/{MANIFEST}"), name

        for name in sorted(set(names) & self._copied.keys(), key=order):
            self._confirm()
            self._place.remove(name)
            del self._copied[name]


def _is_manifest(name: str) -> bool:
    return checkpoint_of(name) is not None and name.split("/")[2:] == [MANIFEST]


def _is_due(stamp: Stamp, copied: Stamp | None) -> bool:
    """True if a file must be copied between two checkpoints."""
    if copied is None or stamp.size <= SMALL or stamp.size < copied.size:
        return True
    return (stamp.size - copied.size) * GROWTH >= copied.size


@contextmanager
def _consistent_file(path: Path) -> Iterator[Path]:
    """Yield a file that may be read while the run writes `path`. Only SQLite can copy its databases then."""
    with path.open("rb") as file:
        is_database = file.read(len(_SQLITE)) == _SQLITE
    if not is_database:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="rllm-store-") as temporary:
        snapshot, source = Path(temporary) / "snapshot", f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(source, uri=True)) as database, closing(sqlite3.connect(snapshot)) as copy:
            database.backup(copy)
        yield snapshot


def remove_local(directory: Path, names: Iterable[str]) -> None:
    """Remove files of a local copy, and directories that are empty then."""
    for name in names:
        (directory / name).unlink(missing_ok=True)
    for place, _, _ in os.walk(directory, topdown=False):
        if place != str(directory) and not os.listdir(place):  # noqa: PTH208  (a name for each file is enough)
            shutil.rmtree(place, ignore_errors=True)
