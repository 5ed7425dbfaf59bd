"""Records of other schemas: older schemas are read, and newer schemas are rejected."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import expect_error

from rllm_record.steps import RecordError
from rllm_record.steps.parquet import VERSION, VERSION_KEY

from .asking import Asking
from .made_runs import Made, make_run

UID = "1.0:task-0:0/0"
ADDED = {"outcomes": ["estimator", "baseline", "advantage"]}
"""Columns that schema 2 added."""


def rewrite(run: Path, kind: str, version: int, without: list[str] | None = None) -> None:
    """Give the file of step 1 a different version, and fewer columns."""
    place = run / "record" / kind / "step_000001.parquet"
    with pq.ParquetFile(place) as file:
        table: pa.Table = file.read()
    marks = {**table.schema.metadata, VERSION_KEY: str(version).encode()}
    pq.write_table(table.drop_columns(without or []).replace_schema_metadata(marks), place)


def test_a_record_of_the_first_schema_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "p" / "r", Made(content="outcomes"))
    for kind in ("episodes", "outcomes"):
        rewrite(run, kind, 1, ADDED.get(kind))

    answer = Asking(run).of_run("episode", step="1", uid=UID)

    assert answer["decided"]["outcome"] == "trained"
    assert answer["decided"]["estimator"] is None


@pytest.mark.parametrize("kind", ["episodes", "traces", "updates", "outcomes"])
def test_newer_schema_is_rejected_with_the_file(run: Path, kind: str) -> None:
    rewrite(run, kind, VERSION + 1)

    with expect_error(RecordError, "schema-too-new", kind, VERSION + 1):
        Asking(run).of_run("episode", step="1", uid=UID)


def test_newer_schema_affects_only_its_step(run: Path) -> None:
    rewrite(run, "episodes", VERSION + 1)
    asking = Asking(run)

    assert [each["step"] for each in asking.of_run("steps")["steps"]] == [0, 2]
    assert "has schema" in asking.of_run("")["problems"][0]


def test_texts_of_a_newer_schema_are_not_shown(run: Path) -> None:
    for step in range(3):
        place = run / "record" / "vocabulary" / f"step_{step:06d}.parquet"
        with pq.ParquetFile(place) as file:
            table = file.read()
        pq.write_table(table.replace_schema_metadata({VERSION_KEY: b"99"}), place)

    assert Asking(run).of_run("episode", step="1", uid=UID)["texts"][2] == "⟨2⟩"
