"""Typed values of a query string."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from rllm_core.errors import ConfigError
from rllm_view.reading.rollouts import Filter

Query = Mapping[str, str]
_NUMBERS = {"step": int, "offset": int, "limit": int, "reward_min": float, "reward_max": float}
_FLAGS = ("solved", "descending")
_TEXTS = ("task", "group", "outcome", "rule", "termination_reason", "name", "text", "order")


def required(query: Query, name: str) -> str:
    """Return a value of the query. Raise ConfigError if it is missing."""
    if name not in query:
        raise ConfigError("bad-query", f"The query has no {name!r}.")
    return query[name]


def whole_number(query: Query, name: str) -> int:
    """Return a whole number of the query. Raise ConfigError if it is missing or not a whole number."""
    return int(_number(name, required(query, name), int))


def number_or(query: Query, name: str, otherwise: int) -> int:
    """Return a whole number, or `otherwise` if it is missing. Raise ConfigError if it is not a whole number."""
    return whole_number(query, name) if name in query else otherwise


def names_in(query: Query, name: str) -> list[str]:
    """Return a comma-separated list of names. Commas in names are percent-encoded. Empty if the value is missing."""
    return [unquote(each) for each in query.get(name, "").split(",") if each]


def filter_of(query: Query) -> Filter:
    """Return the filter for `find_rollouts`. Empty values are ignored.

    Raises:
        ConfigError: a value has the wrong type.
    """
    found: dict[str, Any] = {}
    for name, value in query.items():
        if value == "":
            continue
        if name in _NUMBERS:
            found[name] = _number(name, value, _NUMBERS[name])
        elif name in _FLAGS:
            found[name] = _flag(name, value)
        elif name in _TEXTS:
            found[name] = value
        else:
            raise ConfigError("bad-query", f"Rows cannot be filtered by {name!r}.")
    return Filter(**found)


def _number(name: str, value: str, of: Any) -> Any:
    try:
        return of(value)
    except ValueError as error:
        raise ConfigError("bad-query", f"{name}={value!r} is not a number.") from error


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError("bad-query", f"{name}={value!r} is neither true nor false.")
    return value == "true"
