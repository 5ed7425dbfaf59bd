"""One trajectory is read from the file of its step without reading the others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import expect_error

from rllm_record.steps import RecordError, StepFiles, parquet
from rllm_record.steps.accounting import Accounting
from rllm_record.steps.parquet import VERSION, VERSION_KEY, encoded, read_rows, write_file

from .made_steps import rollout, step

NAMES = pa.schema({"name": pa.string(), "number": pa.int32()})


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a few bytes."""
    monkeypatch.setattr(parquet, "GROUP_BYTES", 64)


def named(place: Path, *names: str) -> Path:
    table = pa.table({"name": list(names), "number": pa.array(range(len(names)), pa.int32())}, NAMES)
    write_file(place, encoded(table, {}))
    return place


def numbers(place: Path, name: str) -> list[int]:
    found: list[int] = read_rows(place, NAMES, "name", name)["number"].to_pylist()
    return found


@pytest.mark.usefixtures("small_groups")
def test_rows_with_a_value_are_found_in_all_groups(tmp_path: Path) -> None:
    place = named(tmp_path / "names.parquet", *("abcd" * 50))
    assert pq.ParquetFile(place).num_row_groups > 10

    assert numbers(place, "b") == [*range(1, 200, 4)]
    assert numbers(place, "nobody") == []
    assert numbers(named(tmp_path / "empty.parquet"), "a") == []


@pytest.mark.usefixtures("small_groups")
def test_the_other_groups_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = named(tmp_path / "names.parquet", *(f"{number:04}" for number in range(200)))
    real, whole = pq.ParquetFile.read_row_group, []

    def noting(file: pq.ParquetFile, group: int, columns: list[str] | None = None) -> pa.Table:
        if columns is None:
            whole.append(group)
        return real(file, group, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noting)

    assert numbers(place, "0150") == [150]
    assert len(whole) == 1


@pytest.mark.usefixtures("small_groups")
def test_a_rollout_is_found_by_each_of_its_trajectories(tmp_path: Path) -> None:
    generated = Accounting().account_for(
        step(3, [rollout(f"t:{n}", 0.0, "solver", "judge") for n in range(9)], []), {}
    )[0]
    files = StepFiles(tmp_path)
    files.write(3, generated, [], "tokens")

    for uid in ("3.0:t:7/0", "3.0:t:7/1"):
        (row,) = files.episode_table(3, uid).to_pylist()
        assert row == files.episode_table(3).to_pylist()[7]
    assert files.episode_table(3, "3.0:t:9/0").num_rows == 0


def test_other_files_are_rejected(tmp_path: Path) -> None:
    place = named(tmp_path / "names.parquet", "a")
    pq.write_table(pq.read_table(place).replace_schema_metadata({VERSION_KEY: str(VERSION + 1)}), place)
    with expect_error(RecordError, "wrong-schema-version"):
        numbers(place, "a")
    write_file(place, encoded(pa.table({"other": ["a"]}), {}))
    with expect_error(RecordError, "file-unreadable"):
        numbers(place, "a")
