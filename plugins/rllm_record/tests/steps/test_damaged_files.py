"""A changed bit in a record is found at any position."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from expecting import check_values, expect_error
from hypothesis import given, strategies as st

from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_core.errors import RllmError
from rllm_record.check.checking import check_run
from rllm_record.steps import StepFiles
from rllm_record.steps.accounting import Accounting
from rllm_record.steps.files import KINDS

from .made_steps import step
from .test_traces import batch_of, make_trajectory, recorded, trace_of


def write_record(directory: Path) -> StepFiles:
    trajectory = make_trajectory(-1.0, -2.0, -3.0)
    return recorded(directory / "record", trajectory, trace=trace_of(batch_of(trajectory)))


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
