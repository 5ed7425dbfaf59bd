"""What a child process prints, said by this one."""

from __future__ import annotations

from pathlib import Path

from rllm_core.notices import say, warn_once

WARNING = "warning: "


class ChildLog:
    """A log that grows, and may have lost its name. Lines are said whole, between the lines of this process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._begun = ""

    def tell(self) -> None:
        """Say the lines that are new; a warning that this process has given already is not given again."""
        *lines, self._begun = (self._begun + self._file.read()).split("\n")
        for line in lines:
            if line.startswith(WARNING):
                warn_once(line.removeprefix(WARNING))
            else:
                say(line)

    def last_lines(self, count: int) -> list[str]:
        """Of those that are there, said or not; `tell` goes on behind them."""
        self.tell()
        self._file.seek(0)
        return self._file.read().strip().splitlines()[-count:]

    def close(self) -> None:
        """Say what is left, also of a line that did not end."""
        self.tell()
        if self._begun:
            say(self._begun)
        self._file.close()
