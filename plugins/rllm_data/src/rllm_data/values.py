"""Values of cells as JSON data."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from rllm_core.errors import ConfigError


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
