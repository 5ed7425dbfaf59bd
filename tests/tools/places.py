"""Places in the code of tests, which messages about errors name."""

from __future__ import annotations

import re


def without_place(message: str) -> str:
    """A message without the file and line of somebody's code, which it must name."""
    text, count = re.subn(r" \([^()]*\.py, line \d+\)", "", message)
    assert count == 1, f"no place in {message!r}"
    return text
