"""Every kind of file, directories of them, and rows divided by their values."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest
from expecting import expect_error

from rllm_core.data.tasks import LazyTasks
from rllm_core.errors import ConfigError

from .conftest import Read, write_lines, write_parquet

ROWS = [{"text": f"row {number}", "n": number} for number in range(4)]


def write_json(path: str) -> None:
    Path(path).write_text(json.dumps(ROWS))


def write_csv(path: str) -> None:
    Path(path).write_text("text,n\n" + "".join(f"{row['text']},{row['n']}\n" for row in ROWS))


def write_arrow(path: str) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


WRITERS: dict[str, Callable[[str], object]] = {
    "rows.parquet": lambda path: write_parquet(path, ROWS),
    "rows.jsonl": lambda path: write_lines(path, ROWS),
    "rows.json": write_json,
    "rows.csv": write_csv,
    "rows.arrow": write_arrow,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_gives_a_task_for_each_row(name: str, read: Read) -> None:
    WRITERS[name](name)
    tasks = read(name)
    assert isinstance(tasks, LazyTasks)
    assert [task.id for task in tasks] == ["0", "1", "2", "3"]
    assert [task.data for task in tasks] == [{**row, "data_source": "rows"} for row in ROWS]
    assert {task.data_source for task in tasks} == {"rows"}


@pytest.mark.parametrize("directory", ["sums-1.5", "json"])
def test_a_directory_has_the_splits_of_its_files(directory: str, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has the name of a builder."""
    Path(directory).mkdir()
    write_parquet(f"{directory}/train-00000-of-00002.parquet", ROWS[:2])
    write_parquet(f"{directory}/train-00001-of-00002.parquet", ROWS[2:3])
    write_parquet(f"{directory}/test.parquet", ROWS[3:])
    Path(f"{directory}/dataset_infos.json").write_text("{}")
    assert len(read(directory)) == 3
    assert [task.data["n"] for task in read(directory, split="test")] == [3]
    assert read(directory)[0].data_source == directory
    monkeypatch.chdir(directory)
    assert read(".")[0].data_source == directory


def test_a_directory_of_save_to_disk_is_read(read: Read) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk("one")
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS[:1])}).save_to_disk("several")
    assert [task.data["n"] for task in read("one")] == [0, 1, 2, 3]
    assert [task.data["n"] for task in read("several", split="test")] == [0]


@pytest.mark.parametrize(
    ("split", "numbers"),
    [("train", "0123"), ("train[:2]", "01"), ("train[2:]", "23"), ("train[50%:75%]", "2"), ("train[-1:]", "3")],
)
def test_a_slice_keeps_the_numbers_of_its_rows(split: str, numbers: str, read: Read) -> None:
    tasks = read(write_parquet("rows.parquet", ROWS), split=split)
    assert [task.id for task in tasks] == list(numbers)
    assert [str(task.data["n"]) for task in tasks] == list(numbers)


def test_shuffle_precedes_limit_and_is_reproducible(read: Read) -> None:
    path = write_parquet("rows.parquet", [{"n": number} for number in range(50)])
    shuffled = read(path, shuffle_seed=7, limit=10)
    assert list(shuffled) == list(read(path, shuffle_seed=7, limit=10))
    assert [task.data["n"] for task in read(path, limit=10)] == list(range(10))
    drawn = [task.data["n"] for task in shuffled]
    assert len(set(drawn)) == 10
    assert drawn != sorted(drawn)
    assert [task.id for task in shuffled] == [str(number) for number in drawn]
    assert drawn != [task.data["n"] for task in read(path, shuffle_seed=8, limit=10)]


@pytest.mark.parametrize(("key", "options"), [("id", {}), ("name", {"id_key": "name"})])
def test_a_column_gives_the_ids(key: str, options: dict[str, str], read: Read) -> None:
    path = write_parquet("rows.parquet", [{key: name, "n": number} for number, name in enumerate("abc")])
    assert [task.id for task in read(path, split="train[1:]", **options)] == ["b", "c"]


def test_row_or_option_names_the_source(read: Read) -> None:
    path = write_parquet("rows.parquet", [{"data_source": "gsm8k"}])
    assert read(path)[0].data_source == "gsm8k"
    named = read(path, data_source="math")[0]
    assert (named.data_source, named.data["data_source"]) == ("math", "gsm8k")


def test_csv_cells_are_numbers_if_they_print_alike(read: Read) -> None:
    lines = ["question,answer,count,share,word", "a,007,3,1.5,", "b,1.50,-4,2,NA", "c,None,0,0.0001,true"]
    Path("rows.csv").write_text("\n".join(lines))
    columns = {name: [task.data[name] for task in read("rows.csv")] for name in ("answer", "count", "share", "word")}
    assert columns == {
        "answer": ["007", "1.50", "None"],
        "count": [3, -4, 0],
        "share": [1.5, 2.0, 0.0001],
        "word": [None, "NA", "true"],
    }


@pytest.mark.parametrize("directory", [False, True])
def test_changed_file_with_old_time_is_read_again(directory: bool, read: Read) -> None:
    Path("data").mkdir()
    file = Path("data/train.jsonl")
    for answer in "12":
        write_lines(str(file), [{"question": "1 + 1?", "answer": answer}])
        os.utime(file, ns=(0, 0))
        (task,) = read("data" if directory else file)
        assert task.data["answer"] == answer


@pytest.mark.parametrize("options", [{}, {"shuffle_seed": 3}, {"split": "train[1:3]"}, {"limit": 3}])
def test_iteration_and_indices_give_the_same_tasks(options: dict[str, Any], read: Read) -> None:
    tasks = read(write_parquet("rows.parquet", ROWS), **options)
    assert list(tasks) == [tasks[index] for index in range(len(tasks))]


@pytest.mark.long
def test_many_rows_take_no_memory(read: Read) -> None:
    count = 300_000
    table = pyarrow.table({"question": pyarrow.array(np.arange(count)).cast("string"), "answer": np.arange(count)})
    pyarrow.parquet.write_table(table, "large.parquet")
    tracemalloc.start()
    try:
        tasks = read("large.parquet")
        assert (len(tasks), tasks[-1].id, tasks[-1].data["answer"]) == (count, str(count - 1), count - 1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 9 * 2**20


SUMS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(400)]


def questions(read: Read, path: str, part: str) -> list[str]:
    return [task.data["question"] for task in read(path, val_fraction=0.25, part=part)]


def test_each_row_is_in_one_numbered_part(read: Read) -> None:
    path = write_parquet("rows.parquet", SUMS)
    train, val = (read(path, val_fraction=0.25, part=part) for part in ("train", "val"))
    assert 70 < len(val) < 130
    numbered = {str(number): row["question"] for number, row in enumerate(SUMS)}
    assert {task.id: task.data["question"] for task in [*train, *val]} == numbered
    assert len(train) + len(val) == len(SUMS)
    assert questions(read, path, "val")[:5] == [
        task.data["question"] for task in read(path, val_fraction=0.25, part="val", limit=5)
    ]


def test_order_and_kind_of_file_move_no_row(read: Read) -> None:
    shuffled = random.Random(0).sample(SUMS, len(SUMS))
    one = questions(read, write_parquet("rows.parquet", SUMS), "val")
    other = questions(read, write_lines("rows.json", shuffled), "val")
    assert sorted(one) == sorted(other)


@pytest.mark.parametrize(("name", "options"), [("id", {}), ("index", {"drop_columns": ["index"]})])
def test_equal_rows_are_in_one_part(read: Read, name: str, options: dict[str, Any]) -> None:
    path = write_parquet("rows.parquet", [{name: str(number), **SUMS[number % 20]} for number in range(100)])
    train, val = (
        {task.data["question"] for task in read(path, part=part, val_fraction=0.25, **options)}
        for part in ("train", "val")
    )
    assert train
    assert val
    assert len(train) + len(val) == 20


def test_a_part_without_rows_is_refused(read: Read) -> None:
    path = write_parquet("rows.parquet", SUMS[:3])
    with expect_error(ConfigError, "no-rows", "rows.parquet", 3, "'val'", "val_fraction", "1e-09"):
        read(path, val_fraction=1e-9, part="val")
