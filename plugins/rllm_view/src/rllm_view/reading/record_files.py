"""Names and states of the files of a record, and the strings of its tokens."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from rllm_record.steps import RecordError, require_known_version

_NAME = re.compile(r"step_([0-9]+)\.parquet")


class FileState(NamedTuple):
    """Identity of a file. It changes if the file is replaced."""

    inode: int
    modified: int
    """Nanoseconds of Unix time."""
    size: int


def outcome_files(record: Path) -> dict[int, Path]:
    """Return the outcome file of each step. It is written last, so these steps are complete."""
    return files_of(record, "outcomes")


def files_of(record: Path, kind: str) -> dict[int, Path]:
    """Return the file of a kind, such as ``traces``, for each step."""
    try:
        entries = list(os.scandir(record / kind))
    except OSError:  # nothing is recorded yet
        return {}
    found = ((_NAME.fullmatch(entry.name), entry) for entry in entries)
    return {int(match[1]): Path(entry.path) for match, entry in found if match}


def state_of(file: Path) -> FileState:
    """Return the state of a file. The file may be deleted by now."""
    try:
        status = file.stat()
    except OSError:
        return FileState(0, 0, 0)
    return FileState(status.st_ino, status.st_mtime_ns, status.st_size)


class Vocabulary:
    """The text of a record's tokens. It follows the files of the record, and is safe to use from several threads.

    A token has one text throughout a run.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        self._texts: dict[int, str] = {}
        self._read: dict[Path, FileState] = {}
        self._lock = threading.Lock()

    def texts(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each token, or for example ``⟨40⟩`` if it is not recorded."""
        wanted = list(ids)
        with self._lock:
            if any(number not in self._texts for number in wanted):
                self._refresh()
            return [self._texts.get(number, f"⟨{number}⟩") for number in wanted]

    def _refresh(self) -> None:
        for file in files_of(self._record, "vocabulary").values():
            state = state_of(file)
            if self._read.get(file) == state:
                continue
            try:
                with pq.ParquetFile(file) as opened:
                    require_known_version(file, opened.schema_arrow.metadata)
                    table = opened.read(columns=["id", "text"])
            except (OSError, pa.ArrowException, RecordError):
                continue  # tokens without text show their ids, and the next call tries again
            self._texts |= zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
            self._read[file] = state
