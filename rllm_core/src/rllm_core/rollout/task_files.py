"""Tasks from rows of data: a file of JSON lines (the built-in dataset ``jsonl``), or what a program passes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

if TYPE_CHECKING:
    from rllm_core.data.types import Task

Row = Mapping[str, Any]
DEFAULT_ID_KEY = "id"


class TaskFileParams(Params):
    """Options of ``jsonl``."""

    path: str = Field(min_length=1, description="The file: one JSON object per line, the data of one task each.")
    id_key: str = Field(
        DEFAULT_ID_KEY, description="Field that holds the task's id; where no line has it, ids are line numbers."
    )
    data_source: str | None = Field(
        None,
        min_length=1,
        description="Name of the tasks in validation tables; null means each line's own `data_source`, else the "
        "file's name without its ending.",
    )


def read_tasks(params: TaskFileParams) -> Sequence[Task]:
    """The tasks of a file, in the order of its lines. Blank lines are passed over.

    Raises:
        ConfigError: the file cannot be read, has no tasks, or has a line that is not a task; says which.
    """
    from rllm_core.data.types import Task  # needs numpy, and the options above are looked at without it

    path = Path(params.path).expanduser()
    rows = dict(_lines(path))
    if not rows:
        raise ConfigError(f"{path} holds no tasks.", "Write one JSON object per line.")
    if params.id_key != DEFAULT_ID_KEY and not any(params.id_key in row for row in rows.values()):
        raise ConfigError(f"No line of {path} has {params.id_key!r}.", "Fix `id_key`; without it ids are line numbers.")
    ids = _ids(rows, params.id_key, lambda number: f"{path}, line {number}")
    return [
        Task(id=ids[number], data=row, data_source=params.data_source or _source(row) or path.stem)
        for number, row in rows.items()
    ]


def tasks_from_rows(rows: Iterable[Task | Row], where: str) -> list[Task]:
    """Tasks as they are, and mappings as the data of one task each.

    A mapping's ``id`` and ``data_source`` name its task; where none has an ``id``, ids are positions, from 0.

    Args:
        rows: tasks, mappings, or both.
        where: what they were passed as, for errors.

    Raises:
        ConfigError: something else is among them, or ids are missing, unusable or not unique.
    """
    from rllm_core.data.types import Task

    if isinstance(rows, str | bytes | Mapping) or not _can_be_iterated(rows):
        raise ConfigError(f"{where} is {rows!r:.80}.", "Pass a list of Task records, or of mappings with their data.")
    given = dict(enumerate(rows))

    def place(number: int) -> str:
        return f"{where}[{number}]"

    for number, row in given.items():
        if not isinstance(row, Task | Mapping):
            raise ConfigError(f"{place(number)} is {row!r:.80}.", "Pass Task records, or mappings with their data.")
    mappings = {number: row for number, row in given.items() if not isinstance(row, Task)}
    own = {number: row.id for number, row in given.items() if isinstance(row, Task)}
    ids = _ids(mappings, DEFAULT_ID_KEY, place, own)
    made = {
        number: Task(id=ids[number], data=dict(row), data_source=_source(row) or Task.data_source)
        for number, row in mappings.items()
    }
    return [row if isinstance(row, Task) else made[number] for number, row in given.items()]


def _can_be_iterated(rows: Any) -> bool:
    try:
        iter(rows)
    except TypeError:
        return False
    return True


def _lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Line numbers, from 1, and what the lines hold."""
    try:
        # As bytes: text is also broken at characters that may stand unescaped in JSON, such as U+2028.
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                stripped = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()
                if stripped:
                    yield number, _row(stripped, f"{path}, line {number}")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.",
            f"Option `path` of dataset jsonl starts from the folder the command runs in, {Path.cwd()}.",
        ) from error


def _row(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: not UTF-8 ({error.reason}).", "Save the file as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        # The decoder counts lines too, within this one.
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise ConfigError(f"{where}: not JSON ({why}).", "Write one JSON object per line.") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: {row!r:.80} is no JSON object.", 'Write one line like {"question": "2 + 2?"}.')
    return row


def _ids(
    rows: Mapping[int, Row], key: str, place: Callable[[int], str], taken: Mapping[int, str] | None = None
) -> dict[int, str]:
    """The id of each row's task: what it holds under `key`, or its number where no row has that.

    `taken` are ids of tasks that have one already, by number.
    """
    ids: dict[int, str] = dict(taken or {})
    having = next((number for number, row in rows.items() if key in row), None)
    for number, row in rows.items():
        if having is not None and key not in row:
            raise ConfigError(
                f"{place(number)} has no {key!r}, and {place(having)} has one.",
                "Give all of them ids, or none.",
            )
        value = number if having is None else row[key]
        if isinstance(value, bool) or not isinstance(value, str | Real):
            raise ConfigError(f"{place(number)} has {value!r:.80} as its {key!r}.", "Ids are text or numbers.")
        ids[number] = str(value)
    first: dict[str, int] = {}
    for number, task_id in sorted(ids.items()):
        if first.setdefault(task_id, number) != number:
            raise ConfigError(
                f"{place(number)} has id {task_id!r}, as {place(first[task_id])} has.",
                "Ids must differ: seeds, groups and episodes are named by them.",
            )
    return ids


def _source(row: Row) -> str:
    source = row.get("data_source")
    return source if isinstance(source, str) else ""
