"""Map a source's columns to the columns of a task: drop columns, rename columns and apply the layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from rllm_core.errors import ConfigError, did_you_mean
from rllm_data.layouts import LAYOUTS, Layout, recognize
from rllm_data.options import HfParams

Shape = Callable[[Mapping[str, Any]], dict[str, Any]]
Fields = Mapping[str, Any]
"""Name of a column or of a struct's field -> the fields below it; None where rows differ in these."""


def shape_of(params: HfParams, columns: Fields, where: str) -> Shape:
    """Return a function that makes the data of a task from a row of JSON data with these columns.

    The row keeps its own columns. Names from the option `columns` override the names from the layout.

    Args:
        params: the options `columns`, `drop_columns` and `format`.
        columns: the source's columns with their fields, without the dropped columns.
        where: the source, for errors.

    Raises:
        ConfigError: an option names a column that does not exist, or a column of the layout is missing.
    """
    paths = {ours: _path(theirs, columns, f"columns.{ours}", where) for ours, theirs in params.columns.items()}
    layout = _layout(params, [*columns, *paths], where)

    def shape(row: Mapping[str, Any]) -> dict[str, Any]:
        mapped = {ours: _value(row, path) for ours, path in paths.items()}
        own = {**row, **mapped}
        return own if layout is None else {**own, **layout.shape(own), **mapped}

    return shape


def need_column(name: str, columns: Collection[str], option: str, where: str) -> None:
    """Raise ConfigError where there is no such column."""
    if name not in columns:
        near = did_you_mean(name, columns)
        raise ConfigError(
            "missing-column",
            f"{where} has no column {name!r}, which option `{option}` names.",
            f"{near} {_columns(columns)}".strip(),
        )


def _path(theirs: str, columns: Fields, option: str, where: str) -> tuple[str, ...]:
    """A column whose name has dots comes before one with fields of that name."""
    if theirs in columns:
        return (theirs,)
    column, *names = theirs.split(".")
    if not names or column not in columns:
        need_column(theirs, columns, option, where)
    fields: Fields | None = columns[column]
    for name in names:
        if fields is None:
            break
        if name not in fields:
            hint = f"{did_you_mean(name, fields)} Its fields are {', '.join(fields) or 'none'}.".strip()
            raise ConfigError(
                "missing-column", f"{where}: column {column!r} has no field for {theirs!r} of option `{option}`.", hint
            )
        fields = fields[name]
    return (column, *names)


def _value(row: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Null where a struct on the way is null or lacks the field."""
    value: Any = row
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _layout(params: HfParams, columns: Collection[str], where: str) -> Layout | None:
    if params.format == "auto":
        return recognize(columns)
    layout = LAYOUTS[params.format]
    if lacking := layout.lacks(columns):
        raise ConfigError(
            "missing-column",
            f"{where} has no column {' and none '.join(lacking)}, which format {layout.name} needs.",
            f"Name it in `columns`, as {{OURS: THEIRS}}, or choose another `format`. {_columns(columns)}",
        )
    return layout


def _columns(columns: Collection[str]) -> str:
    return f"Its columns are {', '.join(columns)}."
