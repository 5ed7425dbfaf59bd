"""Reading a number from a model's words."""

from __future__ import annotations

import re

LONGEST = 9
"""Digits of a number that may be meant; Python itself refuses to read thousands of them."""


def whole_number(words: str) -> int | None:
    """The whole number that `words` consist of, white space and a final full stop aside; None when they are not one."""
    match = re.fullmatch(rf"\s*(\d{{1,{LONGEST}}})\s*\.?\s*", words)
    return int(match[1]) if match else None


def first_whole_number(words: str) -> int | None:
    """The first run of digits among `words`; None when there is none, or it is too long to be meant."""
    match = re.search(r"\d+", words)
    return int(match[0]) if match and len(match[0]) <= LONGEST else None
