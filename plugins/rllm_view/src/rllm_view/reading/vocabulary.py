"""Vocabulary: the strings of tokens, from the record and without a tokenizer."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rllm_record.steps import RecordError, require_known_version
from rllm_view.reading.record_files import FileState, files_of, state_of


class Vocabulary:
    """Follows the files of a record. A token has one text throughout a run. Safe to use from several threads."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._texts: dict[int, str] = {}
        self._read: dict[Path, FileState] = {}
        self._lock = threading.Lock()

    def texts(self, ids: Iterable[int]) -> list[str]:
        """The text of each token, ``⟨40⟩`` for one that is not recorded."""
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
                continue  # tokens without a text show their ids, and the next look tries again
            self._texts |= zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
            self._read[file] = state
