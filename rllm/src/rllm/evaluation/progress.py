"""How far an evaluation is, on standard error: a bar in a terminal, lines elsewhere. Standard output is the result."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_LINES = 5.0
"""Where there is no terminal, a log file should not get a line for every attempt."""


class PlayProgress:
    """Shows attempts done and the share that is correct, by environment."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._name, self._total, self._done, self._correct = "", 0, 0, 0
        self._last_line = time.monotonic()

    def __enter__(self) -> PlayProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._bars.start()
        return self

    def begin(self, name: str, total: int, done: int, correct: int) -> None:
        """An environment is played: `total` attempts, of which `done` were played before, `correct` of them right."""
        self._name, self._total, self._done, self._correct = name, total, done, correct
        if self._bars is not None:
            self._bar = self._bars.add_task(name, total=total, completed=done, metrics="")

    def advance(self, correct: bool) -> None:
        """One more attempt has ended."""
        self._done += 1
        self._correct += correct
        metrics = f"solved {self._correct / self._done:.1%}"
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=self._done, metrics=metrics)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            click.echo(f"{self._name}: {self._done} of {self._total} attempts, {metrics}", err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
