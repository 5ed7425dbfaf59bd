"""What cannot be read is said in one paragraph: what, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from expecting import expect_error
from pydantic import ValidationError

from rllm_core.errors import ConfigError
from rllm_data.columns import HfParams
from rllm_data.plugin import rllm_datasets

from .conftest import Read, write_lines, write_parquet

ROWS = [{"question": f"{number} + 1?", "answer": str(number + 1), "meta": {"gold": number}} for number in range(3)]


@pytest.fixture
def path() -> str:
    return write_parquet("train.parquet", ROWS)


OPTIONS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "columns": (
        {"columns": {"prompt": "qestion"}},
        "missing-column",
        ("train.parquet", "'qestion'", "`columns.prompt`", "'question'", "question, answer, meta"),
    ),
    "field": ({"columns": {"answer": "meta.golt"}}, "missing-column", ("'meta'", "'meta.golt'", "'gold'")),
    "field_of_text": ({"columns": {"answer": "answer.gold"}}, "missing-column", ("'answer'", "'answer.gold'")),
    "drop_columns": ({"drop_columns": ["answers"]}, "missing-column", ("'answers'", "`drop_columns[0]`", "'answer'")),
    "id_key": ({"id_key": "name"}, "missing-column", ("'name'", "`id_key`")),
    "format": ({"format": "verl"}, "missing-column", ("'prompt'", "'reward_model'", "format verl", "`columns`")),
    "split": ({"split": "trian"}, "unknown-split", ("'trian'", "'train'")),
    "slice": ({"split": "train[:x]"}, "unknown-split", ("'train[:x]'", "3 rows", "train[100:200]")),
    "slice_beyond": ({"split": "train[7:9]"}, "no-rows", ("'train[7:9]'",)),
    "slice_without_rows": ({"split": "train[1:1]"}, "no-rows", ("'train[1:1]'",)),
    "joined": ({"split": "train+test"}, "unknown-split", ("`split`", "'train+test'")),
    "config": ({"config": "main"}, "unknown-split", ("`config`", "'main'", "train.parquet")),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_does_not_fit_is_refused(option: str, path: str, read: Read) -> None:
    options, code, values = OPTIONS[option]
    with expect_error(ConfigError, code, *values):
        read(path, **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("part", "val"),
        ("val_fraction", 1.0),
        ("val_fraction", 0.0),
        ("limit", 0),
        ("path", ""),
        ("format", "alpaca"),
        ("shuffle_seed", -1),
    ],
)
def test_options_without_meaning_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        HfParams(**{"path": "rows.parquet", name: value})


def damage(path: str, *, footer: bool = False) -> None:
    whole = Path(write_parquet(path, ROWS)).read_bytes()
    Path(path).write_bytes(whole[:-60] + b"\0" * 50 + whole[-10:] if footer else whole[:-100])


def make_directory_of_two_kinds() -> None:
    Path("directory").mkdir()
    write_parquet("directory/a.parquet", ROWS)
    write_lines("directory/b.json", ROWS)


SEEN_WITHOUT_READING: dict[str, tuple[Callable[[], object], str, str, str]] = {
    "not there": (lambda: Path("train.parquet").touch(), "trian.parquet", "file-not-found", "'train.parquet'"),
    "no directory": (lambda: None, "./no/directory", "file-not-found", "no/directory"),
    "suffix": (lambda: Path("rows.xlsx").write_text("x"), "rows.xlsx", "unknown-file-type", ".xlsx"),
    "no suffix": (lambda: Path("rows").write_text("x"), "rows", "unknown-file-type", ".parquet"),
    "directory without data": (
        lambda: Path("directory").mkdir() or Path("directory/readme.md").touch(),
        "directory",
        "unknown-file-type",
        ".parquet",
    ),
    "directory of two kinds": (make_directory_of_two_kinds, "directory", "unknown-file-type", "a.parquet and b.json"),
}


@pytest.mark.parametrize("what", SEEN_WITHOUT_READING)
def test_a_dry_run_sees_it_too(what: str, read: Read) -> None:
    make, path, code, value = SEEN_WITHOUT_READING[what]
    make()
    (record,) = rllm_datasets()
    assert record.check is not None
    with expect_error(ConfigError, code, value):
        record.check(HfParams(path=path))
    with expect_error(ConfigError, code, value):
        read(path)


def write_no_rows(path: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.int64())}), path)


READ: dict[str, tuple[Callable[[str], object], str, str, tuple[str, ...]]] = {
    "parquet without rows": (write_no_rows, "a.parquet", "no-rows", ()),
    "blank lines": (lambda path: Path(path).write_text("\n\n"), "a.json", "no-rows", ()),
    "csv without rows": (lambda path: Path(path).write_text("a,b\n"), "a.csv", "no-rows", ()),
    "blank csv": (lambda path: Path(path).write_text("\n"), "a.csv", "no-rows", ()),
    "an empty list": (lambda path: Path(path).write_text("[]"), "a.json", "no-rows", ()),
    "an empty file": (lambda path: Path(path).touch(), "a.parquet", "no-rows", ()),
    "damaged": (damage, "a.parquet", "dataset-unreadable", ()),
    "damaged footer": (lambda path: damage(path, footer=True), "a.parquet", "dataset-unreadable", ()),
    "no json": (lambda path: Path(path).write_text('{"a": 1}\n{"a":'), "a.json", "dataset-unreadable", ()),
    "no arrow": (lambda path: Path(path).write_text("x"), "a.arrow", "dataset-unreadable", ()),
    "text with dates": (
        lambda path: Path(path).write_text('[{"answer": "2024-01-05"}]'),
        "a.json",
        "dataset-unreadable",
        ("'answer'", "times", ".jsonl"),
    ),
    "ids that repeat": (
        lambda path: write_parquet(path, [{"id": "x"}, {"id": "y"}, {"id": "x"}]),
        "a.parquet",
        "duplicate-task-id",
        ("row 2", "'x'", "row 0", "drop_columns=[id]"),
    ),
    "ids that are missing": (
        lambda path: write_parquet(path, [{"id": 1}, {"id": None}]),
        "a.parquet",
        "bad-task-id",
        ("row 1", "None", "'id'"),
    ),
    "an infinite number": (
        lambda path: write_parquet(path, [{"a": float("inf")}]),
        "a.parquet",
        "column-not-json",
        ("row 0", "'a'", "inf"),
    ),
}


@pytest.mark.parametrize("what", READ)
def test_bad_file_contents_are_rejected_before_a_run(what: str, read: Read) -> None:
    write, path, code, values = READ[what]
    write(path)
    with expect_error(ConfigError, code, path, *values):
        read(path)


def test_pictures_are_refused_by_column(read: Read) -> None:
    import datasets

    rows = datasets.Dataset.from_list([{"n": 1, "picture": {"bytes": b"\xff", "path": None}}])
    rows.cast_column("picture", datasets.Image(decode=False)).save_to_disk("pictures")
    with expect_error(ConfigError, "column-not-json", "'picture'", "image", "drop_columns=[picture]"):
        read("pictures")
    assert read("pictures", drop_columns=["picture"])[0].data == {"n": 1, "data_source": "pictures"}
    path = write_parquet("rows.parquet", [{"n": 1, "picture": {"bytes": b"\xff"}}])
    with expect_error(ConfigError, "column-not-json", "rows.parquet, row 0", "'picture'", "drop_columns=[picture]"):
        read(path)
