"""MetricsFile: the lines of `metrics.jsonl`, read on from where the last look ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm.runs.metrics_file import METRICS, parse_line


class MetricsFile:
    """Lines of a metrics file, which may still grow. After a resume replaced the file, it is read again completely."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._offset = 0
        self._inode = -1
        self._lines: list[dict[str, Any]] = []
        self.damaged: list[int] = []
        """Numbers of invalid lines, from 1. These lines are skipped."""

    def lines(self) -> list[dict[str, Any]]:
        """Return all complete lines so far, in order.

        Lines of validations have ``val/…`` metrics and the number of the step before the validation.
        """
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
