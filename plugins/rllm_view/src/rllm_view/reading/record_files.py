"""Names and states of the files of a record, and the strings of its tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rllm_record.steps import RecordError
from rllm_record.steps.files import step_files
from rllm_record.steps.parquet import read_columns


class FileState(NamedTuple):
    """Identity of a file. It changes if the file is replaced."""

    inode: int
    modified: int
    """Nanoseconds of Unix time."""
    size: int


def outcome_files(record: Path) -> dict[int, Path]:
    """Return the outcome file of each step. It is written last, so these steps are complete."""
    return step_files(record / "outcomes")


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
        for file in step_files(self._record / "vocabulary").values():
            state = state_of(file)
            if self._read.get(file) == state:
                continue
            try:
                table = read_columns(file, ["id", "text"])
            except RecordError:
                continue  # tokens without text show their ids, and the next call tries again
            self._texts |= zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
            self._read[file] = state
