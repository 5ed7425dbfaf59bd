"""Records with a different schema version are rejected."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import expect_error

from rllm_record.steps import RecordError
from rllm_record.steps.parquet import VERSION, VERSION_KEY

from .asking import Asking

UID = "1.0:task-0:0/0"


def rewrite(run: Path, kind: str, version: int, step: int = 1) -> None:
    """Give the file of a step a different version."""
    place = run / "record" / kind / f"step_{step:06d}.parquet"
    with pq.ParquetFile(place) as file:
        table: pa.Table = file.read()
    marks = {**table.schema.metadata, VERSION_KEY: str(version).encode()}
    pq.write_table(table.replace_schema_metadata(marks), place)


@pytest.mark.parametrize(
    ("kind", "version"),
    [("episodes", VERSION - 1), ("traces", VERSION + 1), ("updates", VERSION - 1), ("outcomes", VERSION + 1)],
)
def test_other_schema_version_is_rejected_with_the_file(run: Path, kind: str, version: int) -> None:
    rewrite(run, kind, version)

    with expect_error(RecordError, "wrong-schema-version", kind, version):
        Asking(run).of_run("episode", step="1", uid=UID)


def test_other_schema_version_affects_only_its_step(run: Path) -> None:
    rewrite(run, "episodes", VERSION + 1)
    asking = Asking(run)

    assert [each["step"] for each in asking.of_run("steps")["steps"]] == [0, 2]
    assert "has schema" in asking.of_run("")["problems"][0]


def test_texts_of_another_schema_version_are_not_shown(run: Path) -> None:
    for step in range(3):
        rewrite(run, "vocabulary", VERSION + 1, step)

    assert Asking(run).of_run("episode", step="1", uid=UID)["texts"][2] == "⟨2⟩"
