"""A file in place of a dataset's name."""

from __future__ import annotations

from pathlib import Path

import pytest
from expecting import expect_error

from rllm.planning import dataset_of_file as dataset_module
from rllm.planning.dataset_of_file import dataset_of_file
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.errors import ConfigError, PluginError
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


@pytest.mark.parametrize("file", ["rows.csv", "some/directory/rows.csv", "/rows.CSV", "~/rows.csv", "../a.b/rows.csv"])
def test_file_suffix_chooses_the_dataset(file: str, registry: Registry) -> None:
    assert dataset_of_file(registry, file, WHERE) == {"name": "other/tables", "path": file}


@pytest.mark.parametrize(
    "name",
    ["lines", "one/lines", "lines:rows.csv", "one/lines:rows.csv", "unknown", "dist/unknown", "unknown:rows.csv"],
)
def test_a_name_is_left_as_it_is(name: str, registry: Registry) -> None:
    Path("lines").touch()
    assert dataset_of_file(registry, name, WHERE) == name


def test_unknown_suffix_error_lists_suffixes_and_names(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "names_elsewhere", lambda kind: ["elsewhere"])
    with expect_error(ConfigError, "unknown-file-type", "data.train_dataset", "'rows.txt'", "rows.txt}"):
        dataset_of_file(registry, "rows.txt", WHERE)


def test_suffix_of_missing_package_gives_pip_command(registry: Registry) -> None:
    with expect_error(
        ConfigError, "plugin-not-installed", "data.train_dataset", "'rows.arrow'", "pip install rllm-data"
    ):
        dataset_of_file(registry, "rows.arrow", WHERE)


def test_so_is_a_directory(registry: Registry) -> None:
    Path("rows").mkdir()
    with pytest.raises(ConfigError, match="'rows': no installed dataset"):
        dataset_of_file(registry, "rows", WHERE)


def test_two_datasets_with_one_suffix_are_listed(registry: Registry) -> None:
    registry.add(dataset("sheets", ".csv"), distribution="third")
    with pytest.raises(ConfigError, match=r"'rows\.csv': other/tables and third/sheets would read it"):
        dataset_of_file(registry, "rows.csv", WHERE)


def test_suffixes_are_a_set_of_names() -> None:
    with expect_error(PluginError, "bad-plugin-spec"):
        Registry().add(DatasetPlugin(name="mine", summary="For tests.", load=lambda: None, suffixes=".csv"))  # type: ignore[arg-type]
