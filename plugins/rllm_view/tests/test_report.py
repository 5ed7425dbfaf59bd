"""report.html, in the directory of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm.runs.run_directory import REPORT
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_view.report import ReportTracker

from .made_runs import Made, make_run
from .test_static import read_data

STEP = {"train/weight_version": 1.0}


@pytest.fixture
def tracked(tmp_path: Path) -> TrackedRun:
    directory = make_run(tmp_path / "p" / "r", Made(steps=1))
    config = {"rllm": {"rollout": {"n": 8}, "trainer": {"seed": 1}}}
    origins = {"rllm.rollout.n": "recipe", "rllm.trainer.seed": "default"}
    return TrackedRun(directory=directory, project_name="p", experiment_name="r", config=config, origins=origins)


def test_finished_run_writes_pages_with_changed_values(tracked: TrackedRun) -> None:
    tracker = ReportTracker(tracked, NoParams())
    tracker.on_train_start(1, 0)
    tracker.close()

    (found,) = read_data(tracked.directory / REPORT)["runs"].values()
    assert found["overview"]["given"] == [{"key": "rllm.rollout.n", "value": "8", "origin": "recipe"}]
    assert len(found["episode"]["0"]) == 8


def test_pages_are_written_after_steps_that_double(tracked: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Path, int]] = []
    monkeypatch.setattr("rllm_view.report.write_page", lambda _, page, episodes, __: written.append((page, episodes)))
    tracker = ReportTracker(tracked, NoParams())
    tracker.on_train_start(9, 0)
    tracker.log(0, {"val/guess/pass@1": 0.5})  # A validation is no step.
    counts = []
    for step in range(9):
        tracker.log(step, STEP)
        counts.append(len(written))

    assert counts == [1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert set(written) == {(tracked.directory / REPORT, 0)}


def test_run_that_never_started_keeps_the_old_report(tracked: TrackedRun) -> None:
    (tracked.directory / REPORT).write_text("of another run")

    ReportTracker(tracked, NoParams()).close()

    assert (tracked.directory / REPORT).read_text() == "of another run"
