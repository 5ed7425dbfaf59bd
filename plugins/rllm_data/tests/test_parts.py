"""Rows divided by their values."""

from __future__ import annotations

import random

from expecting import expect_error

from rllm_core.errors import ConfigError

from .conftest import Read, write_lines, write_parquet

ROWS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(400)]


def questions(read: Read, path: str, part: str) -> list[str]:
    return [task.data["question"] for task in read(path, val_fraction=0.25, part=part)]


def test_every_row_is_in_one_part_and_the_share_is_about_right(read: Read) -> None:
    path = write_parquet("rows.parquet", ROWS)
    train, val = (questions(read, path, part) for part in ("train", "val"))
    assert sorted(train + val) == sorted(row["question"] for row in ROWS)
    assert 70 < len(val) < 130


def test_neither_order_nor_kind_of_file_moves_a_row(read: Read) -> None:
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    one = questions(read, write_parquet("rows.parquet", ROWS), "val")
    other = questions(read, write_lines("rows.json", shuffled), "val")
    assert sorted(one) == sorted(other)


def test_equal_rows_are_in_one_part_whatever_their_ids(read: Read) -> None:
    path = write_parquet("rows.parquet", [{"id": str(number), **ROWS[number % 20]} for number in range(100)])
    train, val = (set(questions(read, path, part)) for part in ("train", "val"))
    assert train
    assert val
    assert not train & val


def test_columns_that_are_dropped_do_not_count(read: Read) -> None:
    path = write_parquet("rows.parquet", [{"index": number, **ROWS[number % 20]} for number in range(100)])
    options = {"val_fraction": 0.25, "drop_columns": ["index"]}
    train, val = ({task.data["question"] for task in read(path, part=part, **options)} for part in ("train", "val"))
    assert len(train) + len(val) == 20


def test_rows_keep_their_numbers_as_ids(read: Read) -> None:
    path = write_parquet("rows.parquet", ROWS)
    tasks = [*read(path, val_fraction=0.25), *read(path, val_fraction=0.25, part="val")]
    assert {task.id: task.data["question"] for task in tasks} == {
        str(number): row["question"] for number, row in enumerate(ROWS)
    }


def test_the_limit_counts_rows_of_the_part(read: Read) -> None:
    path = write_parquet("rows.parquet", ROWS)
    assert questions(read, path, "val")[:5] == [
        task.data["question"] for task in read(path, val_fraction=0.25, part="val", limit=5)
    ]


def test_a_part_without_rows_is_refused(read: Read) -> None:
    path = write_parquet("rows.parquet", ROWS[:3])
    with expect_error(ConfigError, "no-rows", "rows.parquet", 3, "'val'", "val_fraction", "1e-09"):
        read(path, val_fraction=1e-9, part="val")
