"""Compressed sparse rows (CSR), in which clients send tensors with few entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_dense(
    values: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, ...], missing: int
) -> NDArray[Any]:
    """Return the tensor with all its entries.

    Args:
        values: (n,) listed entries.
        rows: (rows + 1,) where each row starts in `values`.
        columns: (n,) column of each listed entry.
        shape: of the result, two numbers.
        missing: value of the entries that are not listed.

    Raises:
        ValueError: the parts do not fit together.
    """
    fits = len(shape) == 2 and len(rows) == shape[0] + 1 and len(columns) == len(values) == rows[-1]
    if not fits or rows[0] != 0 or (np.diff(rows) < 0).any():
        raise ValueError(f"sparse rows of shape {shape}")
    dense = np.full(shape, missing, values.dtype)
    if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
        raise ValueError("a column that is not there")
    places = row_numbers(rows), columns
    if len(np.unique(np.ravel_multi_index(places, shape))) < len(columns):
        raise ValueError("a row has two entries in one column")
    dense[places] = values
    return dense


def row_numbers(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of each listed entry, (n,)."""
    return np.repeat(np.arange(len(rows) - 1), np.diff(rows))
