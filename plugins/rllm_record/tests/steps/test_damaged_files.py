"""A changed bit in a record is found at any position, and one trajectory is read without the others."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import check_values, expect_error
from hypothesis import given, strategies as st

from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_core.errors import RllmError
from rllm_record.check.checking import check_run
from rllm_record.steps import RecordError, StepFiles, parquet
from rllm_record.steps.accounting import Accounting
from rllm_record.steps.files import KINDS
from rllm_record.steps.parquet import VERSION, VERSION_KEY, encode_table, read_rows, write_file

from .made_steps import rollout, step
from .test_traces import batch_of, make_trajectory, record_step, trace_of


def write_record(directory: Path) -> StepFiles:
    trajectory = make_trajectory(-1.0, -2.0, -3.0)
    return record_step(directory / "record", trajectory, trace=trace_of(batch_of(trajectory)))


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> StepFiles:
    return write_record(tmp_path_factory.mktemp("run"))


@given(data=st.data())
def test_check_flipped_bit_is_found(intact: StepFiles, data: st.DataObject) -> None:
    places = [place for kind in KINDS if (place := intact.place(kind, 0)).exists()]
    place = data.draw(st.sampled_from(places))
    before = place.read_bytes()
    byte = data.draw(st.integers(0, len(before) - 1))
    bit = data.draw(st.integers(0, 7))
    place.write_bytes(before[:byte] + bytes([before[byte] ^ 1 << bit]) + before[byte + 1 :])
    try:
        problems = check_run(place.parents[2]).problems
    finally:
        place.write_bytes(before)
    assert any(place.name in each.text or each.code == "file-unreadable" for each in problems)


@pytest.mark.parametrize("kind", ["episodes", "traces", "updates"])
def test_check_missing_file_is_found(tmp_path: Path, kind: str) -> None:
    write_record(tmp_path).place(kind, 0).unlink()

    (problem,) = [each for each in check_run(tmp_path).problems if each.code == "missing-file"]
    assert f"step 0: {kind}/step_000000.parquet" in problem.text


def test_check_file_of_another_step_is_found(tmp_path: Path) -> None:
    files = write_record(tmp_path)
    for number in (1, 3):
        files.write(number, [], [], "tokens")
    files.place("episodes", 0).replace(files.place("episodes", 1))

    problems = {each.code: each.text for each in check_run(tmp_path).problems}
    check_values(problems["changed-file"], "step 1: episodes/step_000001.parquet")
    check_values(problems["missing-step"], "step 2 ")


def test_check_recording_begun_later_misses_nothing(tmp_path: Path) -> None:
    """A record may start at the step of a resume. Only a gap after that step is missing."""
    files = StepFiles(tmp_path / "record")
    for number in (3, 4, 6):
        files.write(number, [], [], "tokens")

    report = check_run(tmp_path)

    assert report.first_step == 3
    (problem,) = report.problems
    assert (problem.code, problem.text[:7]) == ("missing-step", "step 5 ")


@pytest.mark.parametrize("left", ["episodes", "traces", "updates"])
def test_check_first_step_without_outcomes_is_missing(tmp_path: Path, left: str) -> None:
    files = write_record(tmp_path)
    files.write(1, [], [], "tokens")
    for kind in set(KINDS) - {left}:
        files.place(kind, 0).unlink(missing_ok=True)

    (problem,) = check_run(tmp_path).problems
    assert (problem.code, problem.text[:7]) == ("missing-step", "step 0 ")


def test_check_memory_does_not_grow_with_steps(tmp_path: Path) -> None:
    def peak(directory: Path, steps: int) -> int:
        files = StepFiles(directory / "record")
        for number in range(steps):
            trajectory = Trajectory("agent", [Step([1] * 9999, [2], [-1.0])], 1.0, uid="own")
            episode = Episode(id="t:0", trajectories=[trajectory], termination_reason=TerminationReason.ENV_DONE)
            account = Accounting().account_for(step(number, [episode], []), {})
            files.write(number, account.episodes, account.outcomes, "tokens")
        tracemalloc.start()
        try:
            with expect_error(RllmError, "record-without-updates"):
                check_run(directory)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(tmp_path / "imports", 1)
    assert peak(tmp_path / "long", 8) < 1.5 * peak(tmp_path / "short", 2)


def test_write_killed_midway_leaves_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated step exists only after its last file is written."""
    files = write_record(tmp_path)
    written: list[str] = []

    def write_two(place: Path, contents: bytes) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(place.name)
        place.write_bytes(contents)

    monkeypatch.setattr("rllm_record.steps.files.write_file", write_two)
    with pytest.raises(KeyboardInterrupt):
        write_record(tmp_path)

    assert files.steps() == []
    with expect_error(RllmError, "no-record"):
        check_run(tmp_path)


NAMES = pa.schema({"name": pa.string(), "number": pa.int32()})


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a few bytes."""
    monkeypatch.setattr(parquet, "GROUP_BYTES", 64)


def write_names(place: Path, *names: str) -> Path:
    table = pa.table({"name": list(names), "number": pa.array(range(len(names)), pa.int32())}, NAMES)
    write_file(place, encode_table(table, {}))
    return place


def numbers(place: Path, name: str) -> list[int]:
    found: list[int] = read_rows(place, NAMES, "name", name)["number"].to_pylist()
    return found


@pytest.mark.usefixtures("small_groups")
def test_value_is_found_in_all_row_groups(tmp_path: Path) -> None:
    place = write_names(tmp_path / "names.parquet", *("abcd" * 50))
    assert pq.ParquetFile(place).num_row_groups > 10

    assert numbers(place, "b") == [*range(1, 200, 4)]
    assert numbers(place, "nobody") == []
    assert numbers(write_names(tmp_path / "empty.parquet"), "a") == []


@pytest.mark.usefixtures("small_groups")
def test_the_other_groups_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_names(tmp_path / "names.parquet", *(f"{number:04}" for number in range(200)))
    real, whole = pq.ParquetFile.read_row_group, []

    def noting(file: pq.ParquetFile, group: int, columns: list[str] | None = None) -> pa.Table:
        if columns is None:
            whole.append(group)
        return real(file, group, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noting)

    assert numbers(place, "0150") == [150]
    assert len(whole) == 1


@pytest.mark.usefixtures("small_groups")
def test_rollout_is_found_by_each_trajectory(tmp_path: Path) -> None:
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
    place = write_names(tmp_path / "names.parquet", "a")
    pq.write_table(pq.read_table(place).replace_schema_metadata({VERSION_KEY: str(VERSION + 1)}), place)
    with expect_error(RecordError, "wrong-schema-version"):
        numbers(place, "a")
    write_file(place, encode_table(pa.table({"other": ["a"]}), {}))
    with expect_error(RecordError, "file-unreadable"):
        numbers(place, "a")
