"""Damage of a store, as ranges of records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from rllm_gateway.calls.encoding import agrees
from rllm_gateway.calls.schema import COLUMNS

AT_ONCE = 256


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


def find_damage(connection: sqlite3.Connection) -> list[Damage]:
    """See `CallReader.check`. Whoever calls it has begun a transaction."""
    return [damage for table in COLUMNS for damage in _damage_of(connection, table)]


def _damage_of(connection: sqlite3.Connection, table: str) -> Iterator[Damage]:
    top = _last_number(connection, table)
    looked_at = dict(_looked_at(connection, table, 1, top))
    faults = {number: reason for number, reason in looked_at.items() if reason}
    owners = dict[int, str]()
    try:
        owners = _owners(connection, table)
    except sqlite3.DatabaseError as error:
        yield Damage(table=table, first=1, last=top, sessions=(), reason=f"its index cannot be read: {error}")
    else:
        # Numbers that the index does not have are of sessions that were pruned.
        faults = {number: reason for number, reason in faults.items() if number in owners}
        faults |= dict.fromkeys(owners.keys() - looked_at.keys(), "it is not there")
        unknown = looked_at.keys() - owners.keys()
        faults |= {number: "its index does not have it" for number in unknown if not looked_at[number]}
    yield from _ranges(table, faults, owners)


def _ranges(table: str, faults: Mapping[int, str], owners: Mapping[int, str]) -> Iterator[Damage]:
    """Neighbours with one reason, together."""
    neighbours = groupby(enumerate(sorted(faults)), lambda place: (place[1] - place[0], faults[place[1]]))
    for (_, reason), places in neighbours:
        numbers = [number for _, number in places]
        sessions = tuple(sorted({owners[number] for number in numbers if owners.get(number)}))
        yield Damage(table=table, first=numbers[0], last=numbers[-1], sessions=sessions, reason=reason)


def _looked_at(connection: sqlite3.Connection, table: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Numbers from `first` to `last` that are there or cannot be read, with what is wrong: empty where nothing is."""
    for start in range(first, last + 1, AT_ONCE):
        yield from _halved(connection, table, start, min(start + AT_ONCE - 1, last))


def _halved(connection: sqlite3.Connection, table: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """The same of few numbers, in parts where they cannot be read together."""
    query = f"SELECT number, {', '.join(COLUMNS[table])} FROM {table} WHERE number BETWEEN ? AND ?"
    try:
        rows = connection.execute(query, (first, last)).fetchall()
    except sqlite3.DatabaseError as error:
        if first == last:
            yield first, f"it cannot be read: {error}"
            return
        middle = (first + last) // 2
        yield from _halved(connection, table, first, middle)
        yield from _halved(connection, table, middle + 1, last)
        return
    for number, *values in rows:
        yield number, "" if agrees(values) else "it is not what was written"


def _last_number(connection: sqlite3.Connection, table: str) -> int:
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return int(row[0]) if row else 0


def _owners(connection: sqlite3.Connection, table: str) -> dict[int, str]:
    """Session by number, from the index alone; empty text where the table has none."""
    session = {"sessions": "id", "requests": "''"}.get(table, "session")
    # In the order of the index, which holds all that is asked for: the table is not touched.
    order = {"sessions": "id", "requests": "digest"}.get(table, "session")
    query = f"SELECT number, {session} FROM {table} INDEXED BY {table}_known ORDER BY {order}"
    return dict(connection.execute(query).fetchall())
