"""Reading a number from a model's words."""

from __future__ import annotations

import re


def whole_number(words: str) -> int | None:
    """The whole number that `words` consist of, white space and a final full stop aside; None when they are not one."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*\.?\s*", words)
    return int(match[1]) if match else None
