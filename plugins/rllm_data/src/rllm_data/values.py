"""Rows as JSON data: the values of cells, without the nulls that a file format adds to chats and tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from rllm_core.errors import ConfigError

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
