"""Trackers that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import pytest

from rllm_core.contracts import NoParams, Observer, TrackedRun, TrackerPlugin
from rllm_plugin_kit import TrackerContract

from .conftest import vary


class Lines(Observer):
    """One JSON line per step; steps that come again are dropped."""

    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        self.path = self.path_of(run)

    def path_of(self, run: TrackedRun) -> Path:
        return run.directory / "mine.jsonl"

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        kept = [line for line in read(self.path) if first_step and line[0] < first_step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([global_step, dict(metrics)]) + "\n")

    def close(self) -> None:
        pass


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class OpensAtOnce(Lines):
    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        super().__init__(run, params)
        self.path.touch()


class ClosesWhatWasNeverOpened(Lines):
    file: TextIO

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self.file = self.path.open("a")

    def close(self) -> None:
        self.file.close()


class OneFileForAll(Lines):
    shared: TextIO | None = None

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        if OneFileForAll.shared is None or OneFileForAll.shared.closed:
            OneFileForAll.shared = self.path.open("w")

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        assert OneFileForAll.shared is not None
        OneFileForAll.shared.write(json.dumps([global_step, dict(metrics)]) + "\n")

    def close(self) -> None:
        if OneFileForAll.shared is not None:
            OneFileForAll.shared.close()


class LosesWhatFollowsInAStep(Lines):
    last = -2

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        if global_step != self.last:
            super().log(global_step, metrics)
        self.last = global_step


class RoundsNumbers(Lines):
    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        super().log(global_step, {name: round(value, 1) for name, value in metrics.items()})


def logs(log: Callable[[int, Any], Any]) -> type[Lines]:
    """Return a tracker that logs in this way."""
    return vary(Lines, log=lambda self, global_step, metrics: log(global_step, metrics))


def starts(start: Callable[[Path, int], Any]) -> type[Lines]:
    """Return a tracker that starts with its file in this way."""
    return vary(Lines, on_train_start=lambda self, total_steps, first_step: start(self.path, first_step))


def rewrite(path: Path, first_step: int) -> None:
    """Keep all earlier steps, also when a run begins."""
    path.write_text("".join(json.dumps(line) + "\n" for line in read(path) if line[0] < first_step))


def check_step(global_step: int, metrics: Any) -> None:
    assert global_step >= 0


SetsVariables = starts(lambda path, _: os.environ.update(MY_RUN=str(path)))
INSIDE = "it_writes_only_into_the_run_directory"
ANY = "any_value_and_step_can_be_logged"


def plugin(make: Any) -> TrackerPlugin[Any]:
    return TrackerPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make)


def read_back(self: TrackerContract, directory: Path) -> list[Any]:
    return read(directory / "mine.jsonl")


@pytest.mark.long
def test_a_good_tracker_has_no_complaints(complaints: Any, tmp_path: Path) -> None:
    assert complaints(TrackerContract, plugin(Lines), given={"tmp_path": tmp_path}, read_back=read_back) == {}


@pytest.mark.parametrize(
    ("tracker", "test", "said"),
    [
        (OpensAtOnce, "creation_does_not_change_the_run_directory", "writes into the"),
        (vary(Lines, path_of=lambda self, run: Path("mine.jsonl")), INSIDE, "mine.jsonl"),
        (vary(Lines, path_of=lambda self, run: run.directory.parent / "mine.jsonl"), INSIDE, "mine.jsonl"),
        (logs(lambda _, metrics: json.dumps(dict(metrics), allow_nan=False)), ANY, "'reward/agent/mean'"),
        (logs(check_step), ANY, "failed in log(-1, {}"),
        (logs(lambda step, metrics: metrics.update(step=step)), "it_does_not_change_metrics", "changes the metrics"),
        (ClosesWhatWasNeverOpened, "close_at_any_time_works", "AttributeError"),
        (SetsVariables, "process_wide_state_is_unchanged", "leaves environment variables"),
        (OneFileForAll, "concurrent_runs_have_separate_trackers", "failed in log"),
        (LosesWhatFollowsInAStep, "logged_metrics_are_stored_with_their_step", "'val/openai/gsm8k/pass@1'"),
        (RoundsNumbers, "logged_metrics_are_stored_with_their_step", "'val/openai/gsm8k/pass@1'"),
        (starts(lambda *_: None), "a_resumed_run_has_every_step_once", "too often [(2, "),
        (starts(lambda path, _: path.unlink(True)), "a_resumed_run_has_every_step_once", "missing [(-1, "),
        (starts(rewrite), "run_from_the_start_replaces_existing_files", "too often [(-1, "),
    ],
)
def test_contract_reports_the_mistake(
    tracker: type[Lines], test: str, said: str, complaint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_RUN", "before")
    given = {"tmp_path": tmp_path}
    assert said in complaint(TrackerContract, plugin(tracker), test, given=given, read_back=read_back)


def test_a_running_thread_is_reported(complaint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_plugin_kit.surroundings.PATIENCE", 0.0)
    release = threading.Event()
    leaving = starts(lambda *_: threading.Thread(target=release.wait, daemon=True).start())
    given = {"tmp_path": tmp_path}
    said = complaint(TrackerContract, plugin(leaving), "process_wide_state_is_unchanged", given=given)
    release.set()
    assert "leaves running threads" in said


def test_declared_changes_of_the_client_are_excused(complaint: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_RUN", "before")
    excused = {"given": {"tmp_path": tmp_path}, "changes": frozenset({"environment variables"})}
    assert complaint(TrackerContract, plugin(SetsVariables), "process_wide_state_is_unchanged", **excused) == ""
