"""Rows divided by their values."""

from __future__ import annotations

import random
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError

from .conftest import Read, write_lines, write_parquet

ROWS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(400)]


def questions(read: Read, path: str, part: str) -> list[str]:
    return [task.data["question"] for task in read(path, val_fraction=0.25, part=part)]


def test_every_row_is_in_one_part_with_its_number(read: Read) -> None:
    path = write_parquet("rows.parquet", ROWS)
    train, val = (read(path, val_fraction=0.25, part=part) for part in ("train", "val"))
    assert 70 < len(val) < 130
    numbered = {str(number): row["question"] for number, row in enumerate(ROWS)}
    assert {task.id: task.data["question"] for task in [*train, *val]} == numbered
    assert len(train) + len(val) == len(ROWS)
    assert questions(read, path, "val")[:5] == [
        task.data["question"] for task in read(path, val_fraction=0.25, part="val", limit=5)
    ]


def test_neither_order_nor_kind_of_file_moves_a_row(read: Read) -> None:
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    one = questions(read, write_parquet("rows.parquet", ROWS), "val")
    other = questions(read, write_lines("rows.json", shuffled), "val")
    assert sorted(one) == sorted(other)


@pytest.mark.parametrize(("name", "options"), [("id", {}), ("index", {"drop_columns": ["index"]})])
def test_equal_rows_are_in_one_part(read: Read, name: str, options: dict[str, Any]) -> None:
    path = write_parquet("rows.parquet", [{name: str(number), **ROWS[number % 20]} for number in range(100)])
    train, val = (
        {task.data["question"] for task in read(path, part=part, val_fraction=0.25, **options)}
        for part in ("train", "val")
    )
    assert train
    assert val
    assert len(train) + len(val) == 20


def test_a_part_without_rows_is_refused(read: Read) -> None:
    path = write_parquet("rows.parquet", ROWS[:3])
    with expect_error(ConfigError, "no-rows", "rows.parquet", 3, "'val'", "val_fraction", "1e-09"):
        read(path, val_fraction=1e-9, part="val")
