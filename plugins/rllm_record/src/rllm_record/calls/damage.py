"""Damage of a store, as ranges of records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Consecutive records of a table that are lost or are not what was written."""

    table: str
    """``sessions``, ``calls``, ``deliveries``, ``rewards``, ``ends`` or ``requests``."""
    first: int
    """Number of the first such record; a table counts its records from 1, in the order in which they were stored."""
    last: int
    """Number of the last."""
    sessions: tuple[str, ...]
    """Ids of the sessions that these belong to, as far as that can still be told."""
    reason: str
