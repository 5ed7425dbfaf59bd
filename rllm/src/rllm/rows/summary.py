"""Content of a data source: rows, messages by role, and columns that are used or ignored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rllm_core.data.messages import Message

NAMES = ("id", "data_source")
"""Columns that name a row or its source in every run."""
NAMED = 12
"""Number of columns that a line names."""


@runtime_checkable
class HasColumns(Protocol):
    """Tasks of a source whose rows get further columns, such as `prompt`, for environments."""

    columns_of_source: Collection[str]


@dataclass
class RowSummary:
    """Counts over the rows of a data source."""

    source: str
    """The file or the dataset."""
    rows: int = 0
    roles: Counter[str] = field(default_factory=Counter)
    """Number of messages, by role."""
    columns: Counter[str] = field(default_factory=Counter)
    """Rows that have a column, by column."""
    used: set[str] = field(default_factory=set)
    """Columns that the run reads. Empty if the environment and the rewards decide that."""
    untrained: int = 0
    """Assistant messages with a weight of 0, or at the start of a row, because no prompt comes before them."""
    empty: int = 0
    """Trained messages without text, reasoning and calls. They train empty responses."""
    after_last: int = 0
    """Messages after the last assistant message of a row. They are not used."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row and its columns."""
        self.rows += 1
        self.columns.update(row.keys())

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Count messages in the normal form."""
        self.roles.update([message["role"] for message in messages])

    def keep_columns(self, tasks: Iterable[object]) -> None:
        """Remove the columns that the source itself does not have."""
        if isinstance(tasks, HasColumns):
            for column in self.columns.keys() - set(tasks.columns_of_source):
                del self.columns[column]

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        yield f"Data {self.source}: {_count(self.rows, 'row')}"
        if self.roles:
            yield f"  messages: {', '.join(f'{count:,} {role}' for role, count in self.roles.items())}"
        if self.untrained:
            untrained = _count(self.untrained, "assistant message")
            yield f"  not trained: {untrained} with a weight of 0, or without a prompt"
        if self.empty:
            yield f"  empty: {_count(self.empty, 'trained message')} without text, reasoning and tool calls"
        if self.after_last:
            yield f"  not used: {_count(self.after_last, 'message')} after the last assistant message of a row"
        used = [column for column in self.columns if column in self.used]
        others = [column for column in self.columns if column not in self.used and column not in NAMES]
        if used:
            yield f"  columns used: {self._list_columns(used)}"
        if others:
            kind = "ignored" if self.used else "for the environment and the rewards"
            yield f"  columns {kind}: {self._list_columns(others)}"

    def values(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "source": self.source,
            "rows": self.rows,
            "roles": dict(self.roles),
            "columns": dict(self.columns),
            "used": sorted(self.used),
            "untrained": self.untrained,
            "empty": self.empty,
            "after_last": self.after_last,
        }

    def _list_columns(self, columns: Sequence[str]) -> str:
        """Return names of columns. A column that some rows lack has the number of rows that have it."""
        names = [
            column if self.columns[column] == self.rows else f"{column} ({_count(self.columns[column], 'row')})"
            for column in columns[:NAMED]
        ]
        more = len(columns) - NAMED
        return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
