"""Create tasks from rows of data, which are mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from rllm_core.data.types import Task
from rllm_core.errors import ConfigError

Row = Mapping[str, Any]
DEFAULT_ID_KEY = "id"


def tasks_from_rows(rows: Iterable[Task | Row], where: str) -> list[Task]:
    """Return tasks unchanged, and turn each mapping into a task with the mapping as its data.

    A mapping's ``id`` and ``data_source`` identify its task. If no mapping has an ``id``, ids are positions, from 0.

    Args:
        rows: tasks, mappings, or both.
        where: the argument they were passed as, for errors.

    Raises:
        ConfigError: an entry is neither a task nor a mapping, or ids are missing, invalid or not unique.
    """
    if isinstance(rows, str | bytes | Mapping) or not _can_be_iterated(rows):
        raise ConfigError(
            "bad-task", f"{where} is {rows!r:.80}.", "Pass a list of Task records, or of mappings with their data."
        )
    given = dict(enumerate(rows))

    def place(number: int) -> str:
        return f"{where}[{number}]"

    for number, row in given.items():
        if not isinstance(row, Task | Mapping):
            raise ConfigError(
                "bad-task", f"{place(number)} is {row!r:.80}.", "Pass Task records, or mappings with their data."
            )
    mappings = {number: row for number, row in given.items() if not isinstance(row, Task)}
    own = {number: row.id for number, row in given.items() if isinstance(row, Task)}
    ids = ids_of_rows(mappings, DEFAULT_ID_KEY, place, own)
    made = {
        number: Task(id=ids[number], data=dict(row), data_source=source_of_row(row) or Task.data_source)
        for number, row in mappings.items()
    }
    return [row if isinstance(row, Task) else made[number] for number, row in given.items()]


def _can_be_iterated(rows: Any) -> bool:
    try:
        iter(rows)
    except TypeError:
        return False
    return True


def ids_of_rows(
    rows: Mapping[int, Row], key: str, place: Callable[[int], str], taken: Mapping[int, str] | None = None
) -> dict[int, str]:
    """Return the id of each row's task: the row's value of `key`, or its number if no row has this key.

    Args:
        rows: by number.
        key: of the ids.
        place: names the row of a number, for errors.
        taken: ids of tasks that have one already, by number.

    Raises:
        ConfigError: ids are missing, unusable or not unique.
    """
    ids: dict[int, str] = dict(taken or {})
    having = next((number for number, row in rows.items() if row.get(key) is not None), None)
    for number, row in rows.items():
        if having is not None and row.get(key) is None:
            raise ConfigError(
                "bad-task-id",
                f"{place(number)} has no {key!r}, and {place(having)} has one.",
                "Give all of them ids, or none.",
            )
        value = number if having is None else row[key]
        if isinstance(value, bool) or not isinstance(value, str | Real):
            raise ConfigError(
                "bad-task-id", f"{place(number)} has {value!r:.80} as its {key!r}.", "Ids are text or numbers."
            )
        ids[number] = str(value)
    first: dict[str, int] = {}
    for number, task_id in sorted(ids.items()):
        if first.setdefault(task_id, number) != number:
            raise ConfigError(
                "duplicate-task-id",
                f"{place(number)} has id {task_id!r}, as {place(first[task_id])} has.",
                "Seeds, groups and episodes need different ids. Rename the key, and line numbers are the ids.",
            )
    return ids


def source_of_row(row: Row) -> str:
    """Return the data source of a row, or an empty string if it has none."""
    source = row.get("data_source")
    return source if isinstance(source, str) else ""
