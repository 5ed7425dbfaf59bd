"""Messages for the user during a command: plain lines on standard error."""

from __future__ import annotations

import sys
import unicodedata

_KEPT = "\n\t"
_said: set[str] = set()


def warn_once(line: str) -> None:
    """Print ``warning: <line>`` on standard error, unless this process already did."""
    if line not in _said:
        _said.add(line)
        print(f"warning: {line}", file=sys.stderr)  # noqa: T201  (not a log message: it must be seen)


def say(line: str) -> None:
    """Print a line on standard error, for example before a long wait that could look like a hang."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201  (not a log message: it must be seen)


def forget_warnings() -> None:
    """Forget all printed warnings, so that they are printed again. For tests."""
    _said.clear()


def one_line(text: str, limit: int = 300) -> str:
    """Return `text` with all white space replaced by single spaces, cut at `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def harmless(text: str) -> str:
    """Return an external text in which control characters are escaped: escape sequences, bidi overrides, NUL."""
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    return f"\\u{ord(character):04x}" if ord(character) > 0xFF else f"\\x{ord(character):02x}"
