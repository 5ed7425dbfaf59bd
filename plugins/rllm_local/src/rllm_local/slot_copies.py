"""Copies of keys and values from slot to slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Copy(NamedTuple):
    """The first `length` positions of a slot, for others."""

    source: int
    targets: list[int]
    length: int


def together(copies: Sequence[Copy]) -> list[Copy]:
    """The same copies in the same order, neighbours from one source as one."""
    merged: list[Copy] = []
    for copy in copies:
        if merged and merged[-1][::2] == copy[::2]:
            merged[-1].targets.extend(copy.targets)
        else:
            merged.append(Copy(copy.source, list(copy.targets), copy.length))
    return merged
