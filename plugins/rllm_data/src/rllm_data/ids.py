"""Ids of tasks: the values of a column, or the numbers of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.tasks import RowIds
from rllm_core.errors import ConfigError
from rllm_data.columns import need_column
from rllm_data.options import DEFAULT_ID_KEY

if TYPE_CHECKING:
    from datasets import Dataset

ROWS_AT_ONCE = 10_000


def ids_of(split: Dataset, numbers: range | NDArray[np.int64], id_key: str, where: str) -> Sequence[str]:
    """The ids of rows.

    Args:
        split: the rows.
        numbers: those that are tasks, in the order of the tasks, all different.
        id_key: the column with ids. Without a column of the default name ids are the numbers, and take no memory.
        where: the source, for errors.

    Raises:
        ConfigError: the column is not there, or ids in it are missing, unusable or not unique.
    """
    if id_key not in split.column_names:
        if id_key != DEFAULT_ID_KEY:
            need_column(id_key, split.column_names, "id_key", where)
        return RowIds(numbers)
    ids: list[str] = []
    first: dict[str, int] = {}
    values = list(_cells(split, numbers, id_key))
    if id_key == DEFAULT_ID_KEY and all(value is None for value in values):
        return RowIds(numbers)
    for number, value in zip(numbers, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise ConfigError(
                "bad-task-id",
                f"{where}, row {number}: {value!r:.80} is in the id column {id_key!r}.",
                f"Ids are text or numbers. Name another column as `id_key`, or {_DROP.format(id_key)}",
            )
        ids.append(str(value))
        if first.setdefault(ids[-1], number) != number:
            raise ConfigError(
                "duplicate-task-id",
                f"{where}, row {number}: row {first[ids[-1]]} has the id {ids[-1]!r} too.",
                "Ids must differ: seeds, groups and episodes are named by them. Fix the ids, or "
                + _DROP.format(id_key),
            )
    return ids


_DROP = "take row numbers instead: drop_columns=[{}]."


def _cells(split: Dataset, numbers: range | NDArray[np.int64], column: str) -> Iterator[Any]:
    rows = split.select_columns([column]).select(numbers)
    for block in rows.iter(ROWS_AT_ONCE):
        yield from block[column]
