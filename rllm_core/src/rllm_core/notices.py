"""What a user must see while a command runs: plain lines on standard error."""

from __future__ import annotations

import sys

_said: set[str] = set()


def warn_once(line: str) -> None:
    """Print ``warning: <line>`` on standard error, unless this process already did."""
    if line not in _said:
        _said.add(line)
        print(f"warning: {line}", file=sys.stderr)  # noqa: T201  (not a log message: it must be seen)


def say(line: str) -> None:
    """Print a line on standard error: what begins now, where a wait would look like a hang otherwise."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  (not a log message: it must be seen)


def forget_warnings() -> None:
    """Say everything again from here on. For tests."""
    _said.clear()


def one_line(text: str, limit: int = 300) -> str:
    """`text` with all white space made single spaces, cut at `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
