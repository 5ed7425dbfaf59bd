"""The dataset `hf`: choose rows of a source and their ids. Each row becomes a task when its rollout starts.

Rows are JSON data, without the nulls that a file format adds to chats and tools.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.tasks import LazyTasks, RowIds
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, did_you_mean
from rllm_data.columns import DEFAULT_ID_KEY, Fields, HfParams, Part, check_column, make_shape
from rllm_data.reading import read_splits
from rllm_data.source import find_source

if TYPE_CHECKING:
    from datasets import Dataset


Clean = Callable[[Any], Any]
ROLE, CONTENT = "role", "content"


class NotJsonError(Exception):
    """A value that JSON cannot represent."""


def is_json(feature: Any) -> bool:
    """Return True if all values of a feature of the library `datasets` are JSON data: strings, integers, and structs
    and lists of them."""
    if isinstance(feature, Mapping):
        return all(map(is_json, feature.values()))
    if hasattr(feature, "feature"):
        return is_json(feature.feature)
    return str(getattr(feature, "dtype", "")).startswith(("string", "large_string", "bool", "int", "uint"))


def json_row(row: Mapping[str, Any], number: int, where: str, columns: Collection[str]) -> dict[str, Any]:
    """Convert some columns of a row to JSON data.

    Times become ISO 8601 text, durations seconds, decimals text, UTF-8 bytes text, arrays lists, and NaN null.

    Args:
        row: column -> value.
        columns: those whose values may not be JSON data.
        number: the row's number in its split, from 0.
        where: the source, for errors.

    Raises:
        ConfigError: a value is not JSON. The message contains the row and the column.
    """
    made = dict(row)
    for column in columns:
        try:
            made[column] = json_value(row[column])
        except NotJsonError as error:
            raise ConfigError(
                "column-not-json",
                f"{where}, row {number}: column {column!r} contains {error}, which is not JSON.",
                f"Convert the values, or remove the column: drop_columns=[{column}].",
            ) from error
    return made


def json_value(value: Any) -> Any:
    """A value as JSON data.

    Raises:
        NotJsonError: there is no JSON for it; says what it is.
    """
    if hasattr(value, "tolist"):  # numpy's scalars, which may be Python's numbers too, and its arrays
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise NotJsonError(f"a {type(value).__name__}")


def _number(value: float) -> float | None:
    if math.isinf(value):
        raise NotJsonError(str(value))
    return None if math.isnan(value) else value


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError(f"{len(value)} bytes that are not UTF-8") from error


def make_row_cleaner(features: Mapping[str, Any]) -> Clean:
    """Return a function that removes the nulls in the chats and tools of a row with these features.

    Columns of files have one type. So a struct gets all fields that any row has, and rows without a field have null. In
    a chat these nulls would become arguments of tool calls and properties of tools that are in no row.
    """
    cleaners = {name: make_cleaner(feature) for name, feature in features.items()}
    return partial(_clean_struct, {name: clean for name, clean in cleaners.items() if clean is not None})


def make_cleaner(feature: Any, *, is_inside: bool = False) -> Clean | None:
    """Return a function that removes the nulls in the chats and tools of a value. None if the feature has none of them.

    Values of the feature `Json` are unchanged, because it has only the keys of the row. A message keeps `content`.

    Args:
        feature: feature of the library `datasets`, or a mapping of features.
        is_inside: True for a part of a message or of a tool.
    """
    if isinstance(feature, Mapping):
        cleaners = {name: make_cleaner(each, is_inside=is_inside) for name, each in feature.items()}
        below = {name: clean for name, clean in cleaners.items() if clean is not None}
        if is_inside:
            return partial(_clean_part, below, frozenset({CONTENT} & feature.keys()))
        return partial(_clean_struct, below) if below else None
    item = getattr(feature, "feature", None)
    is_part = is_inside or (isinstance(item, Mapping) and _is_message_or_tool(item))
    inner = None if item is None else make_cleaner(item, is_inside=is_part)
    return None if inner is None else partial(_clean_list, inner)


def _is_message_or_tool(item: Mapping[str, Any]) -> bool:
    """Return True if the items of a list are messages or tools."""
    is_message = ROLE in item and bool({CONTENT, "tool_calls"} & item.keys())
    return is_message or "function" in item or {"name", "parameters"} <= item.keys()


def _clean_part(below: Mapping[str, Clean], kept: frozenset[str], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = {name: each for name, each in value.items() if each is not None or name in kept}
    for name, clean in below.items():
        if name in made:
            made[name] = clean(made[name])
    return made


def _clean_struct(chats: Mapping[str, Clean], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {**value, **{name: clean(value[name]) for name, clean in chats.items() if name in value}}


def _clean_list(clean: Clean, value: Any) -> Any:
    return [clean(each) for each in value] if isinstance(value, list) else value


MEDIA = frozenset({"Audio", "Image", "Pdf", "Video", "Nifti"})
"""Features of `datasets` that are read into objects."""
ROWS_AT_ONCE, IDS_AT_ONCE = 1_000, 10_000
_HASH_SIZE = 2**64
Numbers = range | NDArray[np.int64]


class RowTasks(LazyTasks):
    """Tasks of rows. Iteration reads many rows at once, which is several times as fast."""

    def __init__(self, ids: Sequence[str], read: Callable[[int, int], Iterator[Task]], columns: Iterable[str]) -> None:
        """Store the ids, a function that reads tasks from a start index to a stop index, and the source's columns."""
        super().__init__(ids, lambda index: next(read(index, index + 1)))
        self._read = read
        self.columns_of_source = frozenset(columns)

    def __iter__(self) -> Iterator[Task]:
        return self._read(0, len(self))


def read_tasks(params: HfParams) -> LazyTasks:
    """The tasks of a source, in the order of its rows.

    A task's data are the row's columns as JSON data, with `prompt` and `answer` where the layout or the option
    `columns` gives them, and `data_source`. Rows stay in the memory-mapped files until their rollout starts.

    Raises:
        ConfigError: the source cannot be read, has no rows, or does not fit the options; says which.
    """
    source = find_source(params.path)
    split, asked = select_rows(read_splits(source, params.config), params.split, source.place)
    split = _drop_columns(split.with_format(None), params, source.place)
    shape = make_shape(params, {name: _list_fields(feature) for name, feature in split.features.items()}, source.place)
    clean, name = make_row_cleaner(split.features), source.name
    numbers = _choose_rows(split, asked, params, source.place)
    ids = read_ids(split, numbers, params.id_key, source.place)

    def read(start: int, stop: int) -> Iterator[Task]:
        rows = _json_rows(split, numbers[start:stop], source.place)
        for index, (_, row) in enumerate(rows, start):
            data = shape(clean(row))
            own = data.get("data_source")
            data["data_source"] = own if isinstance(own, str) and own else name
            yield Task(id=ids[index], data=data, data_source=params.data_source or data["data_source"])

    tasks = RowTasks(ids, read, split.column_names)
    _ = tasks[0], tasks[-1]  # Report errors in rows before the run starts.
    return tasks


def select_rows(splits: Mapping[str, Dataset], spec: str, where: str) -> tuple[Dataset, range]:
    """The split that `spec` names, whole, and the numbers of the rows that it asks for, from 0.

    Args:
        splits: by name.
        spec: ``train``, ``train[:100]``, ``train[10%:20%]``.
        where: the source, for errors.

    Raises:
        ConfigError: there is no such split, or the slice cannot be read or has no rows.
    """
    from datasets import ReadInstruction

    name, bracket, _ = spec.partition("[")
    if "+" in spec:
        raise ConfigError(
            "unknown-split",
            f"Option `split` is {spec!r}, which joins splits.",
            "Name one split, or put the rows into one file.",
        )
    if name not in splits:
        hint = f"{did_you_mean(name, splits)} Its splits are {', '.join(splits)}."
        raise ConfigError("unknown-split", f"{where} has no split {name!r}.", hint.strip())
    split = splits[name]
    numbers = range(len(split))
    if bracket:
        try:
            (asked,) = ReadInstruction.from_spec(spec).to_absolute({name: len(split)})
        except (AssertionError, ValueError) as error:
            raise ConfigError(
                "unknown-split",
                f"Option `split` is {spec!r}: {where} has {len(split)} rows there, and no such slice.",
                "Write train[:100], train[100:200] or train[:10%].",
            ) from error
        numbers = range(asked.from_, asked.to)
    if not numbers:
        raise ConfigError("no-rows", f"{where} has no rows in {spec!r}.", "Name another split or slice.")
    return split, numbers


def _drop_columns(split: Dataset, params: HfParams, where: str) -> Dataset:
    for index, name in enumerate(params.drop_columns):
        check_column(name, split.column_names, f"drop_columns[{index}]", where)
    kept = split.remove_columns(params.drop_columns) if params.drop_columns else split
    for name, feature in kept.features.items():
        if type(feature).__name__ in MEDIA:
            raise ConfigError(
                "column-not-json",
                f"{where}: column {name!r} contains {type(feature).__name__.lower()}, which is not JSON.",
                f"Remove the column: drop_columns=[{name}].",
            )
    return kept


def _list_fields(feature: Any) -> Fields | None:
    if isinstance(feature, Mapping):
        return {name: _list_fields(below) for name, below in feature.items()}
    return None if type(feature).__name__ == "Json" else {}


def _choose_rows(split: Dataset, asked: range, params: HfParams, where: str) -> Numbers:
    """The numbers of the rows that become tasks, in the order of the tasks."""
    numbers: Numbers = asked
    if params.val_fraction is not None:
        rows = _json_rows(split, asked, where)
        parts = ((number, choose_part(row, params.id_key, params.val_fraction)) for number, row in rows)
        numbers = np.fromiter((number for number, part in parts if part == params.part), dtype=np.int64)
        if not len(numbers):
            raise ConfigError(
                "no-rows",
                f"{where} has {len(asked)} rows, and none of them is in part {params.part!r}.",
                f"Change val_fraction, which is {params.val_fraction}, or give more rows.",
            )
    if params.shuffle_seed is not None:
        order = np.random.default_rng(params.shuffle_seed).permutation(len(numbers))
        numbers = order + numbers.start if isinstance(numbers, range) else numbers[order]
    return numbers[: params.limit]


def choose_part(row: Mapping[str, Any], id_key: str, val_fraction: float) -> Part:
    """Return the part of a row. It depends only on the content, so equal rows are in the same part in any order.

    Args:
        row: JSON data, with all columns of the source.
        id_key: the column with the row's id, which the hash ignores.
        val_fraction: share of the rows for validation.
    """
    content = {column: value for column, value in row.items() if column != id_key}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") < val_fraction * _HASH_SIZE else "train"


def read_ids(split: Dataset, numbers: Numbers, id_key: str, where: str) -> Sequence[str]:
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
            check_column(id_key, split.column_names, "id_key", where)
        return RowIds(numbers)
    remedy = f"take row numbers instead: drop_columns=[{id_key}]."
    ids: list[str] = []
    first: dict[str, int] = {}
    blocks = split.select_columns([id_key]).select(numbers).iter(IDS_AT_ONCE)
    values = [value for block in blocks for value in block[id_key]]
    if id_key == DEFAULT_ID_KEY and all(value is None for value in values):
        return RowIds(numbers)
    for number, value in zip(numbers, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise ConfigError(
                "bad-task-id",
                f"{where}, row {number}: {value!r:.80} is in the id column {id_key!r}.",
                f"Ids are text or numbers. Name another column as `id_key`, or {remedy}",
            )
        ids.append(str(value))
        if first.setdefault(ids[-1], number) != number:
            raise ConfigError(
                "duplicate-task-id",
                f"{where}, row {number}: row {first[ids[-1]]} has the id {ids[-1]!r} too.",
                f"Ids must differ: seeds, groups and episodes are named by them. Fix the ids, or {remedy}",
            )
    return ids


def _json_rows(split: Dataset, numbers: Numbers, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows as JSON data, each with its number."""
    converted = [name for name, feature in split.features.items() if not is_json(feature)]
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        some = numbers[start : start + ROWS_AT_ONCE]
        block = split[some]
        for number, values in zip(map(int, some), zip(*block.values(), strict=True), strict=True):
            yield number, json_row(dict(zip(block, values, strict=True)), number, where, converted)
