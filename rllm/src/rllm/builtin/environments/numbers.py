"""Reading a number from a model's words."""

from __future__ import annotations

import re

LONGEST = 9
"""Maximum number of digits. Python itself raises an error for thousands of digits."""


def whole_number(words: str) -> int | None:
    """Return `words` as an integer, ignoring white space and a final full stop. None if they are not one."""
    match = re.fullmatch(rf"\s*(\d{{1,{LONGEST}}})\s*\.?\s*", words)
    return int(match[1]) if match else None


def first_whole_number(words: str) -> int | None:
    """Return the first sequence of digits in `words` as an integer. None if there is none, or if it is too long."""
    match = re.search(r"\d+", words)
    return int(match[0]) if match and len(match[0]) <= LONGEST else None
