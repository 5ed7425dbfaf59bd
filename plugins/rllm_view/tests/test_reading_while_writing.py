"""Records that are unfinished or truncated, or have a different schema version."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import check_values, expect_error

from rllm_record.run_files import one_run
from rllm_record.steps import RecordError
from rllm_record.steps.parquet import VERSION, VERSION_KEY
from rllm_view.answers import Library
from rllm_view.reading.run import Run

from .asking import Asking
from .made_runs import RunShape, make_run, write_step

STEPS = 15


def test_readers_see_whole_steps_while_run_writes(tmp_path: Path) -> None:
    duckdb, pandas = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    run = make_run(tmp_path / "p" / "r", RunShape(steps=1))
    asking = Asking(run)
    writer = threading.Thread(target=lambda: [write_step(run, step, RunShape()) for step in range(1, STEPS)])
    writer.start()
    looks = 0
    try:
        while writer.is_alive() or looks == 0:
            looks += 1
            counts = duckdb.sql(
                f"SELECT step, count(*) AS n FROM read_parquet('{run}/record/outcomes/*.parquet') GROUP BY step"
            ).fetchall()
            assert {n for _, n in counts} == {8}
            latest = max(step for step, _ in counts)
            assert len(pandas.read_parquet(run / "record" / "episodes" / f"step_{latest:06d}.parquet")) == 8
            assert asking.of_run("episode", step=str(latest), uid=f"{latest}.0:task-0:0/0")["texts"][2] == " w2"
            assert asking.of_run("")["problems"] == []
    finally:
        writer.join()
    asking.library.runs()[0].index.refresh()
    assert [each["step"] for each in asking.of_run("steps")["steps"]] == list(range(STEPS))


def truncations(place: Path) -> Iterator[int]:
    whole = place.read_bytes()
    for eighth in range(8):
        place.write_bytes(whole[: len(whole) * eighth // 8])
        yield eighth


@pytest.mark.parametrize("kind", ["episodes", "outcomes"])
def test_truncated_file_affects_only_its_step(run: Path, kind: str) -> None:
    asking = Asking(run)
    for eighth in truncations(run / "record" / kind / "step_000001.parquet"):
        asking.library.runs()[0].index.refresh()

        assert [each["step"] for each in asking.of_run("steps")["steps"]] == [0, 2], eighth
        assert asking.of_run("")["problems"][0].startswith("Step 1:"), eighth


@pytest.mark.parametrize("kind", ["traces", "updates"])
def test_trace_cut_anywhere_is_an_error(run: Path, kind: str) -> None:
    asking = Asking(run)
    for _ in truncations(run / "record" / kind / "step_000001.parquet"):
        with expect_error(RecordError, "file-unreadable", kind):
            asking.of_run("episode", step="1", uid="1.0:task-0:0/0")


def test_unreadable_metrics_lines_are_reported_and_skipped(run: Path) -> None:
    place = run / "metrics.jsonl"
    first, second, third = place.read_bytes().splitlines(keepends=True)
    place.write_bytes(first + b"\xff\n" + second + b"[1]\n" + third)

    open_page = Run(one_run(run))

    assert open_page.summary().steps == 3
    (problem,) = open_page.problems()
    check_values(problem, "metrics.jsonl", "2, 4")
    # A cut line ends the file.
    place.write_bytes((first + second + third)[:-20])
    assert [run["steps"] for run in Asking(run)("runs")["runs"]] == [2]


def test_removed_run_still_answers_running_requests(run: Path) -> None:
    library = Library([run.parent])
    (open_page,) = library.runs()
    open_page.index.refresh()
    shutil.rmtree(run)

    assert library.runs() == []
    assert open_page.index.rows("SELECT count(*) AS n FROM outcomes") == [{"n": 24}]


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


def test_texts_of_another_schema_version_are_not_shown(run: Path) -> None:
    for step in range(3):
        rewrite(run, "vocabulary", VERSION + 1, step)

    assert Asking(run).of_run("episode", step="1", uid=UID)["texts"][2] == "⟨2⟩"
