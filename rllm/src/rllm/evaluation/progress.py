"""Progress on standard error: a bar in a terminal, else a line every few seconds. Standard output is the result."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0
"""A log file should not get a line for every step of the work."""


class ProgressReport:
    """One bar for each part of the work."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._name, self._total = "", 0
        self._last_line = time.monotonic()

    def __enter__(self) -> ProgressReport:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._bars.start()
        return self

    def begin(self, name: str, total: int) -> None:
        """Start a part of the work."""
        self._name, self._total = name, total
        if self._bars is not None:
            self._bar = self._bars.add_task(name, total=total, note="")

    def show(self, done: int, note: str = "") -> None:
        """Report how much of the part is done."""
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=done, note=note)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            click.echo(f"{self._name}: {done} of {self._total}" + (f", {note}" if note else ""), err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
