"""The dataset `hf`: rows of a source as tasks, each made when its rollout starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.tasks import LazyTasks
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_data.columns import Fields, need_column, shape_of
from rllm_data.ids import ids_of
from rllm_data.options import HfParams
from rllm_data.parts import numbers_of_part
from rllm_data.reading import read_splits
from rllm_data.source import find_source
from rllm_data.split import rows_of_split
from rllm_data.values import json_row

if TYPE_CHECKING:
    from datasets import Dataset

MEDIA = frozenset({"Audio", "Image", "Pdf", "Video", "Nifti"})
"""Features of `datasets` that are read into objects."""
ROWS_AT_ONCE = 1000


def read_tasks(params: HfParams) -> LazyTasks:
    """The tasks of a source, in the order of its rows.

    A task's data are the row's columns as JSON data, with `prompt` and `answer` where the layout or the option
    `columns` gives them, and `data_source`. Rows stay in the memory-mapped files until their rollout starts.

    Raises:
        ConfigError: the source cannot be read, has no rows, or does not fit the options; says which.
    """
    source = find_source(params.path)
    split, asked = rows_of_split(read_splits(source, params.config), params.split, source.place)
    split = _without_dropped(split, params, source.place)
    shape = shape_of(params, {name: _fields_of(feature) for name, feature in split.features.items()}, source.place)
    numbers = _chosen(split, asked, params, source.place)
    ids = ids_of(split, numbers, params.id_key, source.place)

    def make(index: int) -> Task:
        number = int(numbers[index])
        data = shape(json_row(split[number], number, source.place))
        own = data.get("data_source")
        data["data_source"] = own if isinstance(own, str) and own else source.name
        return Task(id=ids[index], data=data, data_source=params.data_source or data["data_source"])

    tasks = LazyTasks(ids, make)
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


def _chosen(split: Dataset, asked: range, params: HfParams, where: str) -> range | NDArray[np.int64]:
    """The numbers of the rows that become tasks, in the order of the tasks."""
    numbers: range | NDArray[np.int64] = asked
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


def _json_rows(split: Dataset, asked: range, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for start in range(asked.start, asked.stop, ROWS_AT_ONCE):
        block = split[start : min(start + ROWS_AT_ONCE, asked.stop)]
        for offset, values in enumerate(zip(*block.values(), strict=True)):
            row = dict(zip(block, values, strict=True))
            yield start + offset, json_row(row, start + offset, where)
