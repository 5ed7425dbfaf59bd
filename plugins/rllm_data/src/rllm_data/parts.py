"""Selection of rows for training and for validation by their values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rllm_data.options import Part

_WHOLE = 2**64


def part_of(row: Mapping[str, Any], id_key: str, val_fraction: float) -> Part:
    """Return the part of a row. It depends only on the content, so equal rows are in the same part in any order.

    Args:
        row: JSON data, with all columns of the source.
        id_key: the column with the row's id, which the hash ignores.
        val_fraction: share of the rows for validation.
    """
    content = {column: value for column, value in row.items() if column != id_key}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") < val_fraction * _WHOLE else "train"


def numbers_of_part(
    rows: Iterable[tuple[int, Mapping[str, Any]]], id_key: str, val_fraction: float, part: Part
) -> Iterator[int]:
    """The numbers of the rows of a part, in order. `rows` are numbers and rows as JSON data."""
    return (number for number, row in rows if part_of(row, id_key, val_fraction) == part)
