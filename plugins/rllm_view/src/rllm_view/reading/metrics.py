"""MetricsFile: the lines of `metrics.jsonl`, read on from where the last look ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm.runs.metrics_file import METRICS, parse_line


class MetricsFile:
    """Grows with the file. A file that was replaced, as a resumed run does, is read anew."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._offset = 0
        self._inode = -1
        self._lines: list[dict[str, Any]] = []
        self.damaged: list[int] = []
        """Numbers of the lines that are not what a run writes, from 1; they are left out."""

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines so far, in order. Those of validations have ``val/…`` and the step that they followed."""
        try:
            file = self._path.open("rb")
        except OSError:
            self._forget()
            return self._lines
        with file:
            self._read_on(file)
        return self._lines

    def _read_on(self, file: Any) -> None:
        status = os.fstat(file.fileno())
        if (status.st_ino, status.st_size >= self._offset) != (self._inode, True):
            self._forget()
            self._inode = status.st_ino
        if status.st_size == self._offset:
            return
        file.seek(self._offset)
        whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return
        self._offset += len(whole) + 1
        for line in whole.split(b"\n"):
            self._take(line)

    def _take(self, line: bytes) -> None:
        values = parse_line(line)
        if values is None:
            self.damaged.append(1 + len(self._lines) + len(self.damaged))
        else:
            self._lines.append(values)

    def _forget(self) -> None:
        self._offset, self._inode, self._lines, self.damaged = 0, -1, [], []


def last_values(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The newest number under each name."""
    values: dict[str, float] = {}
    for line in lines:
        values.update({name: value for name, value in line.items() if _is_number(value)})
    return values


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
