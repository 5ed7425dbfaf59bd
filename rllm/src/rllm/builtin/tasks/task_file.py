"""The dataset `jsonl`: a file of JSON lines."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from rllm.rows.task_rows import Row, ids_of_rows, source_of_row
from rllm.rows.valid_json import has_surrogates, with_valid_text
from rllm_core.contracts.params import Params
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.files import open_to_read
from rllm_core.notices import warn_once

DEFAULT_ID_KEY = "id"


class TaskFileParams(Params):
    """Options of ``jsonl``."""

    path: str = Field(min_length=1)
    """File with one JSON object per line, which is the data of one task."""
    id_key: str = DEFAULT_ID_KEY
    """Field with the task's id. If no line has this field, ids are line numbers."""
    data_source: str | None = Field(None, min_length=1)
    """Name of the tasks in validation tables. null: each line's `data_source`, or the file's name without its suffix.
    """


def read_tasks(params: TaskFileParams) -> Sequence[Task]:
    """Return the tasks of a file, in the order of its lines. Blank lines are ignored.

    Raises:
        ConfigError: the file cannot be read, has no tasks, or has a line that is not a task. The message has the line.
    """
    path = Path(params.path).expanduser()
    rows = dict(_lines(path))
    if not rows:
        raise ConfigError("no-rows", f"{path} contains no tasks.", "Write one JSON object per line.")
    if params.id_key != DEFAULT_ID_KEY and not any(params.id_key in row for row in rows.values()):
        raise ConfigError(
            "missing-column",
            f"No line of {path} has {params.id_key!r}.",
            "Set the option id_key to a key of every line, or remove it to use line numbers as ids.",
        )
    ids = ids_of_rows(rows, params.id_key, lambda number: f"{path}, line {number}")
    return [
        Task(id=ids[number], data=row, data_source=params.data_source or source_of_row(row) or path.stem)
        for number, row in rows.items()
    ]


def _lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield line numbers, from 1, and the objects in the lines."""
    invalid: list[int] = []
    try:
        # Read bytes, because reading text also splits lines at characters that JSON allows unescaped, such as U+2028.
        with open_to_read(path) as lines:
            for number, line in enumerate(lines, 1):
                stripped = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()
                if stripped:
                    row = _row(stripped, f"{path}, line {number}")
                    valid = with_valid_text(row) if has_surrogates(stripped) else row
                    invalid += [number] * (valid != row)
                    yield number, valid
    except OSError as error:
        raise ConfigError(
            "file-unreadable",
            f"{path} cannot be read: {error.strerror or error}.",
            f"{_near_files(path)} Paths start at {Path.cwd()}. Write --data FILE.".lstrip(),
        ) from error
    if invalid:
        warn_once(
            f"{path} has characters that are not valid Unicode in {len(invalid):,} rows, such as line {invalid[0]}. "
            "Each becomes U+FFFD."
        )


def _near_files(path: Path) -> str:
    return did_you_mean(str(path), map(str, path.parent.glob("*")))


def _row(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError("not-utf8", f"{where}: not UTF-8 ({error.reason}).", "Save the file as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        # The decoder counts lines too, within this one.
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        is_list = line.lstrip()[:1] == b"["
        remedy = "If it is a JSON list, rename the file to .json." if is_list else "Write one JSON object per line."
        raise ConfigError("not-json", f"{where}: not JSON ({why}).", remedy) from error
    if not isinstance(row, dict):
        raise ConfigError(
            "not-json", f"{where}: {row!r:.80} is not a JSON object.", 'Write one line like {"question": "2 + 2?"}.'
        )
    return row
