"""A file in place of a dataset's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from expecting import expect_error

from rllm.planning.planner import dataset_of_file
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

WHERE = "data.train_dataset"


def dataset(name: str, *suffixes: str) -> DatasetPlugin[object]:
    return DatasetPlugin(name=name, summary="For tests.", load=lambda: None, suffixes=frozenset(suffixes))


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.chdir(tmp_path)
    made = Registry()
    made.add(dataset("lines", ".jsonl"), distribution="one")
    made.add(dataset("tables", ".parquet", ".csv"), distribution="other")
    return made


def test_file_suffix_chooses_the_dataset_and_names_stay(registry: Registry) -> None:
    for file in ("rows.csv", "some/directory/rows.csv", "/rows.CSV", "~/rows.csv", "../a.b/rows.csv"):
        assert dataset_of_file(registry, file, WHERE) == {"name": "other/tables", "path": file}
    Path("lines").touch()
    names = ("lines", "one/lines", "lines:rows.csv", "one/lines:rows.csv", "unknown", "dist/unknown", "unknown:a.csv")
    for name in names:
        assert dataset_of_file(registry, name, WHERE) == name


@pytest.mark.parametrize(
    ("file", "code", "values"),
    [
        ("rows.txt", "unknown-file-type", ["data.train_dataset", "'rows.txt'", "rows.txt}"]),
        ("rows.arrow", "plugin-not-installed", ["data.train_dataset", "'rows.arrow'", "pip install rllm-data"]),
        ("rows", "unknown-file-type", ["'rows'"]),
        ("rows.csv", "unknown-file-type", ["'rows.csv'", "other/tables and third/sheets"]),
    ],
)
def test_file_without_exactly_one_dataset_is_an_error(
    file: str, code: str, values: list[str], registry: Registry
) -> None:
    Path("rows").mkdir()
    registry.add(dataset("sheets", ".csv"), distribution="third")
    with expect_error(ConfigError, code, *values):
        dataset_of_file(registry, file, WHERE)
