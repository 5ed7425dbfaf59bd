"""Columns of CSV files. A column has numbers only if each cell is written as the number is printed.

Without this, `datasets` reads 007 as 7, 1.50 as 1.5 and NA as null, because pandas does.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset, Features

INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
DECIMAL = r"^-?(0|[1-9][0-9]{0,5})(\.0{0,3}([1-9][0-9]{0,6})?[1-9])?$"
"""Cells whose number is printed in the same way. 007 and 1.50 are not: they may be the text of an answer."""


def text_columns(path: str) -> Features | None:
    """Return the columns of a file, all as text. None if it has no header."""
    import datasets

    with Path(path).open(encoding="utf-8-sig", newline="") as lines:
        header = next(csv.reader(lines), [])
    return datasets.Features({name: datasets.Value("string") for name in header}) if any(header) else None


def with_numbers(split: Dataset) -> Dataset:
    """Return the rows with integers or floats in columns of numbers. Empty cells are null. Other columns have text."""
    import datasets
    import pyarrow.compute

    features = split.features.copy()
    for name in split.column_names:
        cells = split.data.column(name)
        filled = cells.filter(pyarrow.compute.not_equal(cells, ""))
        for pattern, kind in ((INTEGER, "int64"), (DECIMAL, "float64")):
            if len(filled) and _all(pyarrow.compute.match_substring_regex(filled, pattern)):
                features[name] = datasets.Value(kind)
                break
    return split.map(_empty_as_null, batched=True).cast(features)


def _all(values: Any) -> bool:
    import pyarrow.compute

    return bool(pyarrow.compute.all(values).as_py())


def _empty_as_null(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: [cell or None for cell in cells] for name, cells in columns.items()}
