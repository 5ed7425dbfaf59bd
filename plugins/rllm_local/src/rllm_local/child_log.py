"""Prints a child process's output in this process."""

from __future__ import annotations

from pathlib import Path

from rllm_core.notices import say, warn_once

WARNING = "warning: "


class ChildLog:
    """A growing log file, which may be deleted while it is open. Only complete lines are printed, between this
    process's own lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._begun = ""

    def tell(self) -> None:
        """Print the new lines. A warning that this process has already printed is not repeated."""
        *lines, self._begun = (self._begun + self._file.read()).split("\n")
        for line in lines:
            if line.startswith(WARNING):
                warn_once(line.removeprefix(WARNING))
            else:
                say(line)

    def last_lines(self, count: int) -> list[str]:
        """Print the new lines, and return the last `count` lines of the whole log."""
        self.tell()
        self._file.seek(0)
        return self._file.read().strip().splitlines()[-count:]

    def close(self) -> None:
        """Print the remaining lines, including an incomplete last line, and close the file."""
        self.tell()
        if self._begun:
            say(self._begun)
        self._file.close()
