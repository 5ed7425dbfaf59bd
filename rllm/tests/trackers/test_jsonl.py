"""The tracker `jsonl`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rllm.trackers.jsonl import JsonLinesTracker
from rllm.trackers.options import JsonLinesParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.errors import RllmError

Write = Callable[..., None]


@pytest.fixture
def write(run: TrackedRun) -> Write:
    """One start of a run: logs `steps`, each with the metric `value`."""

    def write(steps: range, first_step: int, value: float = 0.0, path: str | None = None) -> None:
        tracker = JsonLinesTracker(run, JsonLinesParams(path=path))
        tracker.on_train_start(10, first_step)
        for step in steps:
            tracker.log(step, {"value": value})
        tracker.close()

    return write


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _values(path: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["metrics"]["value"]) for line in _lines(path)]


def test_a_line_has_step_time_and_metrics_and_is_there_at_once(run: TrackedRun) -> None:
    before = time.time()
    tracker = JsonLinesTracker(run, JsonLinesParams())
    tracker.on_train_start(2, 0)
    tracker.log(0, {"reward/agent/mean": 0.5, "batch/solved": 1})
    (line,) = _lines(run.directory / "tracker.jsonl")
    assert line.keys() == {"step", "time", "metrics"}
    assert (line["step"], line["metrics"]) == (0, {"batch/solved": 1.0, "reward/agent/mean": 0.5})
    assert before <= line["time"] <= time.time()
    tracker.close()


def test_numbers_json_does_not_know_become_null(run: TrackedRun) -> None:
    tracker = JsonLinesTracker(run, JsonLinesParams())
    tracker.log(0, {"a": float("nan"), "b": float("inf"), "c": -float("inf"), "d": 1.0})
    tracker.close()
    assert _lines(run.directory / "tracker.jsonl")[0]["metrics"] == {"a": None, "b": None, "c": None, "d": 1.0}


def test_a_line_cut_off_by_a_crash_is_forgotten(run: TrackedRun, write: Write) -> None:
    write(range(2), 0)
    with (run.directory / "tracker.jsonl").open("a") as file:
        file.write('{"step": 2, "ti')
    write(range(2, 3), 2)
    assert [step for step, _ in _values(run.directory / "tracker.jsonl")] == [0, 1, 2]


@pytest.mark.parametrize("path", ["lines.jsonl", "deep/down/lines.jsonl"])
def test_a_path_is_one_in_the_run_folder(run: TrackedRun, write: Write, path: str) -> None:
    write(range(1), 0, path=path)
    assert len(_lines(run.directory / path)) == 1
    assert not (run.directory / "tracker.jsonl").exists()


def test_a_path_may_be_anywhere_else(run: TrackedRun, write: Write, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "lines.jsonl"
    write(range(1), 0, path=str(elsewhere))
    assert len(_lines(elsewhere)) == 1


@pytest.mark.parametrize("content", ['{"step": 0, "reward": 0.5}\n', "[1]\n", "no JSON\n"])
def test_a_file_that_somebody_else_wrote_is_left_alone(run: TrackedRun, content: str) -> None:
    (run.directory / "theirs.jsonl").write_text(content)
    tracker = JsonLinesTracker(run, JsonLinesParams(path="theirs.jsonl"))
    with pytest.raises(RllmError, match=r"theirs\.jsonl holds "):
        tracker.on_train_start(10, 0)
    assert (run.directory / "theirs.jsonl").read_text() == content


def test_nothing_is_written_before_there_is_something_to_write(run: TrackedRun, write: Write) -> None:
    write(range(0), 0)
    assert not (run.directory / "tracker.jsonl").exists()


# A file that several runs write


def test_runs_that_share_a_file_drop_only_their_own_lines(run: TrackedRun, write: Write, tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    other = JsonLinesTracker(replace(run, experiment_name="other"), JsonLinesParams(path=str(shared)))
    other.on_train_start(10, 0)
    write(range(3), 0, value=1.0, path=str(shared))
    other.log(0, {"value": 9.0})
    write(range(1, 2), 1, value=2.0, path=str(shared))  # resumed, while the other goes on
    other.log(1, {"value": 9.0})
    assert [(line["run"], line["step"], line["metrics"]["value"]) for line in _lines(shared)] == [
        ("numbers/first", 0, 1.0),
        ("numbers/other", 0, 9.0),
        ("numbers/first", 1, 2.0),
        ("numbers/other", 1, 9.0),
    ]
    write(range(1), 0, value=3.0, path=str(shared))  # from the beginning
    assert [line["run"] for line in _lines(shared)] == ["numbers/other", "numbers/other", "numbers/first"]
    other.close()


def test_lines_that_do_not_say_whose_they_are_stay(write: Write, tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    line = '{"step": 0, "time": 1.5, "metrics": {"value": 0.5}}\n'
    shared.write_text(line)
    write(range(1), 0, path=str(shared))
    assert shared.read_text().startswith(line)
    assert len(_lines(shared)) == 2
