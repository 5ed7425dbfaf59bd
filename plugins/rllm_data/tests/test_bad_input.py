"""What cannot be read is said in one paragraph: what, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from rllm_core.errors import ConfigError
from rllm_data.options import HfParams
from rllm_data.plugin import rllm_datasets

from .conftest import Read, write_lines, write_parquet

ROWS = [{"question": f"{number} + 1?", "answer": str(number + 1), "meta": {"gold": number}} for number in range(3)]


@pytest.fixture
def path() -> str:
    return write_parquet("train.parquet", ROWS)


def said(act: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        act()
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


COLUMNS = "Its columns are question, answer, meta."
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "columns": (
        {"columns": {"prompt": "qestion"}},
        "train.parquet has no column 'qestion', which option `columns.prompt` names. "
        f"Did you mean 'question'? {COLUMNS}",
    ),
    "field": (
        {"columns": {"answer": "meta.golt"}},
        "train.parquet: column 'meta' has no field for 'meta.golt' of option `columns.answer`. "
        "Did you mean 'gold'? Its fields are gold.",
    ),
    "field_of_text": (
        {"columns": {"answer": "answer.gold"}},
        "train.parquet: column 'answer' has no field for 'answer.gold' of option `columns.answer`. "
        "Its fields are none.",
    ),
    "drop_columns": (
        {"drop_columns": ["answers"]},
        "train.parquet has no column 'answers', which option `drop_columns[0]` names. "
        f"Did you mean 'answer'? {COLUMNS}",
    ),
    "id_key": (
        {"id_key": "name"},
        f"train.parquet has no column 'name', which option `id_key` names. {COLUMNS}",
    ),
    "format": (
        {"format": "verl"},
        "train.parquet has no column 'prompt' and none 'reward_model', which format verl needs. "
        f"Name it in `columns`, as {{OURS: THEIRS}}, or choose another `format`. {COLUMNS}",
    ),
    "split": (
        {"split": "trian"},
        "train.parquet has no split 'trian'. Did you mean 'train'? Its splits are train.",
    ),
    "slice": (
        {"split": "train[:x]"},
        "Option `split` is 'train[:x]': train.parquet has 3 rows there, and no such slice. "
        "Write train[:100], train[100:200] or train[:10%].",
    ),
    "slice_beyond": (
        {"split": "train[7:9]"},
        "train.parquet has no rows in 'train[7:9]'. Name another split or slice.",
    ),
    "slice_without_rows": (
        {"split": "train[1:1]"},
        "train.parquet has no rows in 'train[1:1]'. Name another split or slice.",
    ),
    "joined": (
        {"split": "train+test"},
        "Option `split` is 'train+test', which joins splits. Name one split, or put the rows into one file.",
    ),
    "config": (
        {"config": "main"},
        "Option `config` is 'main', and train.parquet has no configurations. Leave `config` out.",
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_does_not_fit_is_refused(option: str, path: str, read: Read) -> None:
    options, text = OPTIONS[option]
    assert said(lambda: read(path, **options)) == text


@pytest.mark.parametrize(
    "options",
    [
        {"part": "val"},
        {"val_fraction": 1.0},
        {"val_fraction": 0.0},
        {"limit": 0},
        {"path": ""},
        {"format": "alpaca"},
        {"shuffle_seed": -1},
    ],
    ids=str,
)
def test_options_without_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HfParams(**{"path": "rows.parquet", **options})


def damage(path: str) -> None:
    whole = Path(write_parquet(path, ROWS)).read_bytes()
    Path(path).write_bytes(whole[:-100])


def damage_footer(path: str) -> None:
    whole = Path(write_parquet(path, ROWS)).read_bytes()
    Path(path).write_bytes(whole[:-60] + b"\0" * 50 + whole[-10:])


def make_directory_of_two_kinds() -> None:
    Path("directory").mkdir()
    write_parquet("directory/a.parquet", ROWS)
    write_lines("directory/b.json", ROWS)


SEEN_WITHOUT_READING: dict[str, tuple[Callable[[], object], str, str]] = {
    "not there": (
        lambda: Path("train.parquet").touch(),
        "trian.parquet",
        "trian.parquet is not there. Did you mean 'train.parquet'? "
        "Option `path` of dataset hf starts from the folder the command runs in, ",
    ),
    "no folder": (lambda: None, "./no/folder", "no/folder is not there. Option `path`"),
    "empty": (
        lambda: Path("rows.csv").touch(),
        "rows.csv",
        "rows.csv is empty. Write rows into it, or name another file.",
    ),
    "ending": (
        lambda: Path("rows.xlsx").write_text("x"),
        "rows.xlsx",
        "rows.xlsx has the ending .xlsx. Dataset hf reads .parquet, .json, .jsonl, .csv, .arrow: "
        "convert or rename the file.",
    ),
    "no ending": (lambda: Path("rows").write_text("x"), "rows", "rows has no ending. Dataset hf reads .parquet"),
    "damaged": (
        lambda: damage("rows.parquet"),
        "rows.parquet",
        "rows.parquet is damaged: it does not begin and end as a parquet file does. Write or copy it again",
    ),
    "folder without data": (
        lambda: Path("directory").mkdir() or Path("directory/readme.md").touch(),
        "directory",
        "The folder directory holds no data. Dataset hf reads .parquet",
    ),
    "folder of two kinds": (
        make_directory_of_two_kinds,
        "directory",
        "The folder directory holds files of several kinds: a.parquet and b.json. Name one file, or a folder for each "
        "kind.",
    ),
}


@pytest.mark.parametrize("what", SEEN_WITHOUT_READING)
def test_a_dry_run_sees_it_too(what: str, read: Read) -> None:
    make, path, text = SEEN_WITHOUT_READING[what]
    make()
    (record,) = rllm_datasets()
    assert record.check is not None
    check = record.check
    assert said(lambda: check(HfParams(path=path))).startswith(text)
    assert said(lambda: read(path)).startswith(text)


def write_no_rows(path: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": pyarrow.array([], pyarrow.int64())}), path)


READ: dict[str, tuple[Callable[[str], object], str, str]] = {
    "parquet without rows": (write_no_rows, "a.parquet", "a.parquet holds no rows. Write rows into it, or"),
    "blank lines": (lambda path: Path(path).write_text("\n\n"), "a.json", "a.json holds no rows. Write rows"),
    "csv without rows": (lambda path: Path(path).write_text("a,b\n"), "a.csv", "a.csv holds no rows. Write rows"),
    "blank csv": (lambda path: Path(path).write_text("\n"), "a.csv", "a.csv holds no rows. Write rows"),
    "an empty list": (lambda path: Path(path).write_text("[]"), "a.json", "a.json holds no rows. Write rows"),
    "damaged footer": (damage_footer, "a.parquet", "a.parquet cannot be read as parquet: "),
    "no json": (lambda path: Path(path).write_text('{"a": 1}\n{"a":'), "a.json", "a.json cannot be read as json: "),
    "no arrow": (lambda path: Path(path).write_text("x"), "a.arrow", "a.arrow cannot be read as arrow: "),
    "ids that repeat": (
        lambda path: write_parquet(path, [{"id": "x"}, {"id": "y"}, {"id": "x"}]),
        "a.parquet",
        "a.parquet, row 2: id 'x' is that of row 0 too. Ids must differ: seeds, groups and episodes are named by them. "
        "Fix the ids, or take row numbers instead: drop_columns=[id].",
    ),
    "ids that are missing": (
        lambda path: write_parquet(path, [{"id": 1}, {"id": None}]),
        "a.parquet",
        "a.parquet, row 1: None is in the id column 'id'. Ids are text or numbers.",
    ),
    "an infinite number": (
        lambda path: write_parquet(path, [{"a": float("inf")}]),
        "a.parquet",
        "a.parquet, row 0: column 'a' holds inf, which is not JSON.",
    ),
}


@pytest.mark.parametrize("what", READ)
def test_what_a_file_holds_is_refused_before_a_run(what: str, read: Read) -> None:
    write, path, text = READ[what]
    write(path)
    assert said(lambda: read(path)).startswith(text)


def test_pictures_are_refused_by_column(read: Read) -> None:
    import datasets

    rows = datasets.Dataset.from_list([{"n": 1, "picture": {"bytes": b"\xff", "path": None}}])
    rows.cast_column("picture", datasets.Image(decode=False)).save_to_disk("pictures")
    assert said(lambda: read("pictures")) == (
        "pictures: column 'picture' holds image, which is not JSON. Leave it out: drop_columns=[picture]."
    )
    assert read("pictures", drop_columns=["picture"])[0].data["n"] == 1
