"""Places in the code of tests, as in error messages."""

from __future__ import annotations

import re


def without_place(message: str) -> str:
    """Return a message without the file and line of the code, which it must contain."""
    text, count = re.subn(r" \([^()]*\.py, line \d+\)", "", message)
    assert count == 1, f"no place in {message!r}"
    return text
