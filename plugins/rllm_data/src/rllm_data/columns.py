"""Map a source's columns to the columns of a task: drop and rename columns, and apply the layout of a library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rllm_core.contracts.params import Params
from rllm_core.errors import ConfigError, did_you_mean

Part = Literal["train", "val"]
LayoutName = Literal["auto", "verl", "trl", "messages", "qa"]
DEFAULT_ID_KEY = "id"


class HfParams(Params):
    path: str = Field(min_length=1)
    """A file (.parquet, .json, .jsonl, .csv, .arrow), a directory of such files, a directory from `save_to_disk`, or
    the id of a dataset on the hub."""
    split: str = Field("train", min_length=1)
    """The split, or a slice of it: `train[:100]`, `test[10%:]`. A file has only the split `train`."""
    config: str | None = Field(None, min_length=1)
    """Configuration of a dataset on the hub or of a directory. null means its only configuration."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Mapping from our name to the source's column: `{prompt: text, answer: meta.gold}`. A dot selects a field of a
    struct. Columns also keep their own names."""
    drop_columns: list[str] = Field(default_factory=list)
    """Columns to drop, for example images, which are not JSON."""
    format: LayoutName = "auto"
    """Layout of the rows, which decides the columns of `prompt` and `answer`. auto detects the layout from the columns.
    If it detects none, rows stay unchanged."""
    id_key: str = Field(DEFAULT_ID_KEY, min_length=1)
    """Column with the tasks' ids. If the rows do not have it, ids are row numbers of the split, from 0."""
    data_source: str | None = Field(None, min_length=1)
    """Name of the tasks in validation tables. null means each row's own `data_source`, or the name of the file,
    directory or dataset if a row has none."""
    val_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of the rows for validation. A hash of the row without its id decides. null means that the rows are not
    split."""
    part: Part = "train"
    """Part of the rows to read if `val_fraction` is set."""
    shuffle_seed: int | None = Field(None, ge=0)
    """Seed of a shuffle before `limit`. null means the rows' order."""
    limit: int | None = Field(None, gt=0)
    """Maximum number of tasks. null means all."""

    @model_validator(mode="after")
    def _check_part(self) -> Self:
        if self.part == "val" and self.val_fraction is None:
            raise ValueError("part is val, but val_fraction is not set: set val_fraction, or remove part")
        return self


Row = Mapping[str, Any]

PROMPTS = ("question", "problem", "query")
ANSWERS = ("answer", "solution", "ground_truth", "completion")


@dataclass(frozen=True)
class Layout:
    """How rows are laid out."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    """Alternatives for each required column: the rows need at least one column of each tuple."""
    shape: Callable[[Row], dict[str, Any]]
    """Function from a row (JSON data) to its `prompt` and `answer`. A field that the row does not have is missing."""

    def missing_columns(self, columns: Collection[str]) -> list[str]:
        """Return the required columns that are missing, as text."""
        return [" or ".join(map(repr, names)) for names in self.needs if not set(names) & set(columns)]


def find_layout(columns: Collection[str]) -> Layout | None:
    """Return the layout of rows with these columns. None if no layout fits."""
    return next((layout for layout in LAYOUTS.values() if not layout.missing_columns(columns)), None)


def _verl(row: Row) -> dict[str, Any]:
    made = {"prompt": row["prompt"]}
    reward_model = row["reward_model"]
    if isinstance(reward_model, Mapping) and "ground_truth" in reward_model:
        made["answer"] = reward_model["ground_truth"]
    return made


def _trl(row: Row) -> dict[str, Any]:
    return {"prompt": row["prompt"]} | _answer(row)


def _messages(row: Row) -> dict[str, Any]:
    """The last message is the answer where the assistant says it."""
    messages = row["messages"]
    if not _is_chat(messages) or messages[-1].get("role") != "assistant":
        return {"prompt": messages} | _answer(row)
    return {"prompt": messages[:-1], "answer": messages[-1].get("content")} | _answer(row)


def _question_and_answer(row: Row) -> dict[str, Any]:
    return {"prompt": next(row[name] for name in PROMPTS if name in row)} | _answer(row)


def _answer(row: Row) -> dict[str, Any]:
    """The first column with an answer. One in messages is what the assistant says last."""
    for name in ANSWERS:
        if name in row:
            said = row[name]
            return {"answer": said[-1].get("content") if _is_chat(said) else said}
    return {}


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) and "role" in each for each in value)
    )


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("verl", (("prompt",), ("reward_model",)), _verl),
        Layout("trl", (("prompt",),), _trl),
        Layout("messages", (("messages",),), _messages),
        Layout("qa", (PROMPTS,), _question_and_answer),
    )
}
"""By name, the most particular first."""
Shape = Callable[[Mapping[str, Any]], dict[str, Any]]
Fields = Mapping[str, Any]
"""Name of a column or of a struct's field -> the fields below it; None where rows differ in these."""


def make_shape(params: HfParams, columns: Fields, where: str) -> Shape:
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


def check_column(name: str, columns: Collection[str], option: str, where: str) -> None:
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
        check_column(theirs, columns, option, where)
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
    """Return the value at a path of nested columns. None if a struct on the way is null or has no such field."""
    value: Any = row
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _layout(params: HfParams, columns: Collection[str], where: str) -> Layout | None:
    if params.format == "auto":
        return find_layout(columns)
    layout = LAYOUTS[params.format]
    if lacking := layout.missing_columns(columns):
        raise ConfigError(
            "missing-column",
            f"{where} has no column {' and none '.join(lacking)}, which format {layout.name} needs.",
            f"Name it in `columns`, as {{OURS: THEIRS}}, or choose another `format`. {_columns(columns)}",
        )
    return layout


def _columns(columns: Collection[str]) -> str:
    return f"Its columns are {', '.join(columns)}."
