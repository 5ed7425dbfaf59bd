"""Trackers receive metrics, a failing tracker is handled, and episodes have one file per step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.runs.episode_log import EpisodeLog
from rllm.runs.run_directory import RunDirectory
from rllm.tracking.fan_out import Trackers
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun, TrackerPlugin
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.codec import episode_from_json
from rllm_core.data.types import Episode, Trajectory
from rllm_core.errors import PluginError, RllmError


class ListTracker:
    """Remembers what it gets; raises in the methods named."""

    def __init__(self, raises: tuple[str, ...] = (), error: BaseException | None = None) -> None:
        self.raises = raises
        self.error = error or ConnectionError("no route")
        self.got: list[tuple[int, dict[str, float]]] = []
        self.calls: list[str] = []

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        self._call("log")
        self.got.append((global_step, dict(metrics)))

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method in self.raises:
            raise self.error


class WatchingTracker(ListTracker, Observer):
    """Also remembers two events of the loop."""

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._call("on_train_start")
        self.events = [(total_steps, first_step)]

    def on_epoch_end(self, epoch: int) -> None:
        self._call("on_epoch_end")


def _choice(name: str, make: Callable[..., Any], load: Callable[[], Any] | None = None) -> PluginChoice[Any]:
    plugin = TrackerPlugin(name=name, summary="For tests.", params=NoParams, load=load or (lambda: make))
    return PluginChoice(registered=Registered(plugin=plugin, distribution="tests", version="0"), params=NoParams())


Made = tuple[Trackers, list[str]]
MakeTrackers = Callable[..., Made]


@pytest.fixture
def trackers(directory: RunDirectory, run: TrackedRun) -> MakeTrackers:
    """Trackers by name, and the warnings they gave."""

    def make(*named: tuple[str, Any]) -> Made:
        warnings: list[str] = []
        chosen = [_choice(name, lambda run, params, tracker=tracker: tracker) for name, tracker in named]
        return Trackers(chosen, directory, run, warnings.append), warnings

    return make


def _lines(directory: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory.path / "metrics.jsonl").read_text().splitlines()]


def test_metrics_reach_every_tracker_and_the_directory(trackers: MakeTrackers, directory: RunDirectory) -> None:
    one, other = ListTracker(), ListTracker()
    made, warnings = trackers(("one", one), ("other", other))
    made.log(3, {"reward": 0.5})
    made.close()
    assert one.got == other.got == [(3, {"reward": 0.5})]
    assert _lines(directory) == [{"step": 3, "reward": 0.5}]
    assert one.calls == ["log", "close"]
    assert warnings == []


def test_a_tracker_that_cannot_start_is_switched_off(directory: RunDirectory, run: TrackedRun) -> None:
    def broken(run: TrackedRun, params: NoParams) -> ListTracker:
        raise OSError("no server")

    good = ListTracker()
    warnings: list[str] = []
    given: list[TrackedRun] = []
    chosen = [_choice("bad", broken), _choice("good", lambda run, params: given.append(run) or good)]
    made = Trackers(chosen, directory, run, warnings.append)
    made.log(0, {})
    assert len(warnings) == 1
    check_values(warnings[0], "'bad'", "OSError: no server")
    assert (given, good.got) == ([run], [(0, {})])


def test_only_the_failing_one_of_equal_names_is_switched_off(trackers: MakeTrackers) -> None:
    bad, good = ListTracker(raises=("log",)), ListTracker()
    made, warnings = trackers(("file", bad), ("file", good))
    made.log(0, {})
    made.log(1, {})
    assert [step for step, _ in good.got] == [0, 1]
    assert len(warnings) == 1


def test_events_of_the_loop_reach_the_trackers_that_watch_it(trackers: MakeTrackers) -> None:
    plain, watching = ListTracker(), WatchingTracker()
    made, warnings = trackers(("plain", plain), ("watching", watching))
    made.tell("on_train_start", 10, 3)
    made.tell("on_epoch_start", 0)
    assert (plain.calls, watching.calls, watching.events) == ([], ["on_train_start"], [(10, 3)])
    assert warnings == []


def test_a_tracker_that_raises_is_switched_off_and_closed(trackers: MakeTrackers, directory: RunDirectory) -> None:
    bad, good = WatchingTracker(raises=("on_epoch_end",)), WatchingTracker()
    made, warnings = trackers(("bad", bad), ("good", good))
    made.log(0, {"reward": 0.5})
    for epoch in range(3):
        made.tell("on_epoch_end", epoch)
    assert bad.calls == ["log", "on_epoch_end", "close"]
    made.log(1, {"reward": 1.0})
    made.close()
    assert len(warnings) == 1
    check_values(warnings[0], "'bad'", "ConnectionError: no route")
    assert bad.calls == ["log", "on_epoch_end", "close"]
    assert good.calls == ["log", *["on_epoch_end"] * 3, "log", "close"]
    assert [line["step"] for line in _lines(directory)] == [0, 1]


@pytest.mark.parametrize("method", ["log", "on_epoch_end", "close"])
@pytest.mark.parametrize("error", [ValueError("two\nlines"), SystemExit("two\nlines")], ids=["raises", "exits"])
def test_every_failure_has_one_warning(trackers: MakeTrackers, method: str, error: BaseException) -> None:
    bad, good = WatchingTracker((method, "close"), error), WatchingTracker()
    made, warnings = trackers(("bad", bad), ("good", good))
    for step in range(2):
        made.log(step, {})
        made.tell("on_epoch_end", step)
    for _ in range(2):
        made.close()
    assert len(warnings) == 1
    check_values(warnings[0], "'bad'", f"{type(error).__name__}: two lines")
    assert good.calls == ["log", "on_epoch_end"] * 2 + ["close"]


def test_an_interrupt_during_a_call_is_no_failure(trackers: MakeTrackers) -> None:
    made, warnings = trackers(("one", ListTracker(("log",), KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        made.log(0, {})
    assert warnings == []


def test_a_tracker_that_cannot_be_loaded_stops_the_run(directory: RunDirectory, run: TrackedRun) -> None:
    def load() -> Any:
        raise ImportError("libmetrics.so: cannot open shared object file")

    made: list[TrackedRun] = []
    chosen = [_choice("good", lambda run, params: made.append(run)), _choice("bad", print, load)]
    with expect_error(PluginError, "plugin-not-loadable", "tests/bad", "ImportError", "libmetrics.so"):
        Trackers(chosen, directory, run, lambda warning: None)
    assert made == []


def test_unwritable_run_directory_ends_the_run(trackers: MakeTrackers, directory: RunDirectory) -> None:
    made, warnings = trackers(("good", ListTracker()))
    (directory.path / "metrics.jsonl").mkdir()
    with expect_error(RllmError, "not-writable", "metrics.jsonl"):
        made.log(0, {})
    assert warnings == []


def _step(global_step: int) -> TrainStep:
    episodes = [Episode(id=f"task:{index}", trajectories=[Trajectory("agent", reward=1.0)]) for index in range(2)]
    return TrainStep(global_step=global_step, epoch=0, total_steps=4, tasks=[], generated=episodes)


def test_a_step_s_episodes_are_read_with_their_batch(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there" / "yet"
    step, second = _step(3), _step(3)
    del second.generated[1:]
    step.take_rollout_batch(second)
    EpisodeLog(directory).on_batch_end(step)
    with gzip.open(directory / "step_000003.jsonl.gz", "rt") as lines:
        read = [json.loads(line) for line in lines]
    assert [(line["id"], line["batch"]) for line in read] == [("task:0", 0), ("task:1", 0), ("task:0", 1)]
    assert [episode_from_json(line).id for line in read] == ["task:0", "task:1", "task:0"]


@pytest.mark.parametrize("first_step", [0, 2, 4])
def test_episodes_of_steps_that_are_made_again_are_dropped(tmp_path: Path, first_step: int) -> None:
    for step in range(4):
        EpisodeLog(tmp_path).on_batch_end(_step(step))
    (tmp_path / "step_notes.txt").touch()
    (tmp_path / "step_x.jsonl.gz").touch()
    EpisodeLog(tmp_path).on_train_start(4, first_step)
    kept = {f"step_{step:06d}.jsonl.gz" for step in range(first_step)}
    assert {file.name for file in tmp_path.iterdir()} == {*kept, "step_notes.txt", "step_x.jsonl.gz"}


# In a directory outside the run directory


def _logged(directory: Path, run: Path, steps: range, first_step: int = 0) -> list[str]:
    """What is in the directory after a run of these steps."""
    log = EpisodeLog(directory, run)
    log.on_train_start(4, first_step)
    for step in steps:
        log.on_batch_end(_step(step))
    return sorted(file.name for file in directory.iterdir())


def test_a_run_finds_its_own_episodes_again_by_the_marker(tmp_path: Path) -> None:
    directory, run = tmp_path / "episodes", tmp_path / "runs" / "p" / "e"
    assert len(_logged(directory, run, range(3))) == 4
    assert json.loads((directory / "run.json").read_text()) == {"run_directory": str(run)}
    kept = ["run.json", "step_000000.jsonl.gz", "step_000001.jsonl.gz"]
    assert _logged(directory, run, range(0), first_step=2) == kept
    assert _logged(directory, run, range(0)) == ["run.json"], "a run that replaces itself"


@pytest.mark.parametrize("marked", [True, False], ids=["another run's marker", "no marker"])
def test_episodes_of_another_run_stay_unchanged(tmp_path: Path, marked: bool) -> None:
    directory, other = tmp_path / "episodes", tmp_path / "runs" / "p" / "other"
    _logged(directory, other, range(3))
    if not marked:
        (directory / "run.json").unlink()
    before = {file: file.read_bytes() for file in directory.iterdir()}
    whose = f"the run in {other}" if marked else "another run"
    values = (directory, whose, "rllm.episode_logging.episode_log_dir=DIRECTORY")
    with expect_error(RllmError, "directory-in-use", *values):
        EpisodeLog(directory, tmp_path / "runs" / "p" / "e")
    assert {file: file.read_bytes() for file in directory.iterdir()} == before


def test_earlier_run_keeps_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "episodes"
    late = EpisodeLog(directory, tmp_path / "late")
    _logged(directory, tmp_path / "early", range(1))
    with expect_error(RllmError, "directory-in-use"):
        late.on_train_start(4, 0)
    assert (directory / "step_000000.jsonl.gz").exists()


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_marker_that_says_nothing_is_no_permission(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(RllmError, match="episodes"):
        EpisodeLog(tmp_path, tmp_path / "run")


def test_other_files_in_the_directory_are_no_obstacle(tmp_path: Path) -> None:
    for name in ("step_x.jsonl.gz", "notes.txt"):
        (tmp_path / name).touch()
    expected = ["notes.txt", "run.json", "step_000000.jsonl.gz", "step_x.jsonl.gz"]
    assert _logged(tmp_path, tmp_path / "run", range(1)) == expected
