"""The dataset `hf`: rows of a source as tasks, each made when its rollout starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.tasks import LazyTasks
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_data.columns import Fields, need_column, shape_of
from rllm_data.ids import ids_of
from rllm_data.nulls import row_cleaner_of
from rllm_data.options import HfParams
from rllm_data.parts import numbers_of_part
from rllm_data.reading import read_splits
from rllm_data.source import find_source
from rllm_data.split import rows_of_split
from rllm_data.values import is_json, json_row

if TYPE_CHECKING:
    from datasets import Dataset

MEDIA = frozenset({"Audio", "Image", "Pdf", "Video", "Nifti"})
"""Features of `datasets` that are read into objects."""
ROWS_AT_ONCE = 1000
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
    split, asked = rows_of_split(read_splits(source, params.config), params.split, source.place)
    split = _without_dropped(split.with_format(None), params, source.place)
    shape = shape_of(params, {name: _fields_of(feature) for name, feature in split.features.items()}, source.place)
    clean, name = row_cleaner_of(split.features), source.name
    numbers = _chosen(split, asked, params, source.place)
    ids = ids_of(split, numbers, params.id_key, source.place)

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


def _without_dropped(split: Dataset, params: HfParams, where: str) -> Dataset:
    for index, name in enumerate(params.drop_columns):
        need_column(name, split.column_names, f"drop_columns[{index}]", where)
    kept = split.remove_columns(params.drop_columns) if params.drop_columns else split
    for name, feature in kept.features.items():
        if type(feature).__name__ in MEDIA:
            raise ConfigError(
                "column-not-json",
                f"{where}: column {name!r} contains {type(feature).__name__.lower()}, which is not JSON.",
                f"Remove the column: drop_columns=[{name}].",
            )
    return kept


def _fields_of(feature: Any) -> Fields | None:
    if isinstance(feature, Mapping):
        return {name: _fields_of(below) for name, below in feature.items()}
    return None if type(feature).__name__ == "Json" else {}


def _chosen(split: Dataset, asked: range, params: HfParams, where: str) -> Numbers:
    """The numbers of the rows that become tasks, in the order of the tasks."""
    numbers: Numbers = asked
    if params.val_fraction is not None:
        rows = _json_rows(split, asked, where)
        numbers = np.fromiter(numbers_of_part(rows, params.id_key, params.val_fraction, params.part), dtype=np.int64)
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


def _json_rows(split: Dataset, numbers: Numbers, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows as JSON data, each with its number."""
    converted = [name for name, feature in split.features.items() if not is_json(feature)]
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        some = numbers[start : start + ROWS_AT_ONCE]
        block = split[some]
        for number, values in zip(map(int, some), zip(*block.values(), strict=True), strict=True):
            yield number, json_row(dict(zip(block, values, strict=True)), number, where, converted)
