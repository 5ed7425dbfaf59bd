"""Trackers receive metrics, failing trackers are handled, episodes have files, and the console prints lines."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.runs.episode_log import EpisodeLog
from rllm.runs.run_directory import RunDirectory
from rllm.tracking import console
from rllm.tracking.console import ConsoleTracker, format_step, validation_metrics
from rllm.tracking.tracker_group import Trackers
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import NoParams
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
    plugin = TrackerPlugin(name=name, summary="For tests.", load=load or (lambda: make))
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


def test_only_the_failing_tracker_is_switched_off(trackers: MakeTrackers) -> None:
    bad, good = ListTracker(raises=("log",)), ListTracker()
    made, warnings = trackers(("file", bad), ("file", good))
    made.log(0, {})
    made.log(1, {})
    assert [step for step, _ in good.got] == [0, 1]
    assert len(warnings) == 1


def test_loop_events_reach_trackers_that_observe(trackers: MakeTrackers) -> None:
    plain, watching = ListTracker(), WatchingTracker()
    made, warnings = trackers(("plain", plain), ("watching", watching))
    made.notify("on_train_start", 10, 3)
    made.notify("on_epoch_start", 0)
    assert (plain.calls, watching.calls, watching.events) == ([], ["on_train_start"], [(10, 3)])
    assert warnings == []


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("log", ["log", "close"]),
        ("on_epoch_end", ["log", "on_epoch_end", "close"]),
        ("close", ["log", "on_epoch_end", "log", "on_epoch_end", "close"]),
    ],
)
@pytest.mark.parametrize("error", [ValueError("two\nlines"), SystemExit("two\nlines")], ids=["raises", "exits"])
def test_every_failure_has_one_warning(
    trackers: MakeTrackers, directory: RunDirectory, method: str, calls: list[str], error: BaseException
) -> None:
    bad, good = WatchingTracker((method, "close"), error), WatchingTracker()
    made, warnings = trackers(("bad", bad), ("good", good))
    for step in range(2):
        made.log(step, {})
        made.notify("on_epoch_end", step)
    for _ in range(2):
        made.close()
    assert len(warnings) == 1
    check_values(warnings[0], "'bad'", f"{type(error).__name__}: two lines")
    assert good.calls == ["log", "on_epoch_end"] * 2 + ["close"]
    # It is closed when it fails, and not called again.
    assert bad.calls == calls
    assert [line["step"] for line in _lines(directory)] == [0, 1]


def test_an_interrupt_during_a_call_is_no_failure(trackers: MakeTrackers) -> None:
    made, warnings = trackers(("one", ListTracker(("log",), KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        made.log(0, {})
    assert warnings == []


def test_tracker_that_cannot_load_stops_the_run(directory: RunDirectory, run: TrackedRun) -> None:
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


def test_logged_episodes_have_their_batch(tmp_path: Path) -> None:
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
def test_episodes_of_repeated_steps_are_dropped(tmp_path: Path, first_step: int) -> None:
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


def test_marker_identifies_the_episodes_of_a_run(tmp_path: Path) -> None:
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


Lines = Callable[[], list[str]]
Clock = dict[str, float]
METRICS = {"batch/solved": 0.25, "reward/agent/mean": 0.5, "reward/agent/max": 9.0, "time/tokens_per_second": 1234.4}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set ``clock["now"]``."""
    clock = {"now": 100.0}
    monkeypatch.setattr(console.time, "monotonic", lambda: clock["now"])
    return clock


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What trackers made in this test print."""
    stream = io.StringIO()
    monkeypatch.setattr(console.sys, "stdout", stream)
    return stream


@pytest.fixture
def tracker(clock: Clock, printed: io.StringIO, run: TrackedRun) -> ConsoleTracker:
    return ConsoleTracker(run, NoParams())


@pytest.fixture
def lines(printed: io.StringIO) -> Lines:
    return lambda: printed.getvalue().splitlines()


def console_step(global_step: int, total_steps: int = 100, **fields: Any) -> TrainStep:
    return TrainStep(
        global_step=global_step, epoch=0, total_steps=total_steps, tasks=[], metrics=dict(METRICS), **fields
    )


def test_line_has_step_metrics_and_time_left(tracker: ConsoleTracker, clock: Clock, lines: Lines) -> None:
    tracker.on_train_start(100, 0)
    clock["now"] += 10
    tracker.on_batch_end(console_step(9))
    assert lines() == ["10/100 steps  solved  25.0%  reward  0.500   1234 tokens/s  1:30 left"]
    clock["now"] += 10
    tracker.on_batch_end(console_step(10, skip_reason="all_groups_rejected"))
    assert "(no update: all groups rejected)" in lines()[1]


def test_lines_are_five_seconds_apart(tracker: ConsoleTracker, clock: Clock, lines: Lines) -> None:
    tracker.on_train_start(8, 0)
    for step in range(8):
        clock["now"] += 2
        tracker.on_batch_end(console_step(step, total_steps=8))
    assert [line.split()[0] for line in lines()] == ["1/8", "4/8", "7/8", "8/8"]


def test_a_resumed_run_measures_from_its_start(tracker: ConsoleTracker, clock: Clock, lines: Lines) -> None:
    tracker.on_train_start(100, 90)
    clock["now"] += 6
    tracker.on_batch_end(console_step(91))
    first, second = lines()
    assert first == "resuming after 90 of 100 steps"
    assert second.endswith("0:24 left")


def test_a_long_line_is_not_broken(tracker: ConsoleTracker, lines: Lines) -> None:
    tracker.on_validation_end(5, {f"val/source_{index}/pass@1": 0.5 for index in range(30)})
    assert len(lines()) == 1


def test_validation_has_a_line_with_all_data_sources(tracker: ConsoleTracker, lines: Lines) -> None:
    tracker.on_validation_end(5, {"val/openai/gsm8k/pass@1": 0.25, "val/openai/gsm8k/reward": 0.5, "val/[bold]/x": 1.0})
    assert lines() == ["validation after 5 steps: openai/gsm8k: pass@1 0.250  reward 0.500; [bold]: x 1.000"]


def test_rise_of_the_validation_loss_is_reported_once(tracker: ConsoleTracker, lines: Lines) -> None:
    tracker.on_train_start(10, 0)
    for finished, loss in ((4, 1.0), (6, 1.005), (8, 2.0), (10, 3.0)):
        tracker.on_validation_end(finished, {"val/default/loss": loss})
    first, second, third, rise, last = lines()
    assert first == "validation after 4 steps: default: loss 1.000"
    best = "; best loss of default 1.000 after 4 steps"
    assert all(line.endswith(best) for line in (second, third, last))
    check_values(rise, "loss rises", "1.000", "rllm.trainer.total_batches=4")


def test_loss_that_only_rises_needs_a_lower_rate(tracker: ConsoleTracker, lines: Lines) -> None:
    for finished, loss in ((0, 1.0), (4, 2.0)):
        tracker.on_validation_end(finished, {"val/default/loss": loss})
    assert lines()[2] == "The validation loss rises: the best was 1.000 after 0 steps. Lower the learning rate."


def test_resumed_run_keeps_its_best_loss(tracker: ConsoleTracker, lines: Lines, run: TrackedRun) -> None:
    run.directory.mkdir(exist_ok=True)
    (run.directory / "metrics.jsonl").write_text('{"step": 1, "val/default/loss": 0.5, "val/other/loss": null}\n')
    tracker.on_train_start(10, 3)
    tracker.on_validation_end(4, {"val/default/loss": 1.0})
    check_values(lines()[-1], "the best was 0.500 after 2 steps")


def test_line_of_a_distillation_has_the_divergence() -> None:
    shown = {"distill/kl": "divergence", "actor/target_divergence": "divergence"}
    line = format_step({"batch/solved": 0.0, "reward/agent/mean": 0.0, "distill/kl": 0.25}, shown)
    assert line == "divergence 0.250      0 tokens/s"
    check_values(
        format_step({"batch/solved": 0.5, "actor/target_divergence": 0.25}, shown), "divergence 0.250", "50.0%"
    )


def test_line_without_rollouts_has_loss_or_shown_metrics() -> None:
    assert format_step({"actor/loss": 0.5}, {}) == "loss 0.500      0 tokens/s"
    shown = {"preference/loss": "loss", "preference/accuracy": "accuracy %"}
    metrics = {"actor/loss": 0.5, "preference/loss": 0.25, "preference/accuracy": 0.75}
    assert format_step(metrics, shown) == "loss 0.250  accuracy  75.0%      0 tokens/s"


def test_line_has_reward_problems_above_zero() -> None:
    metrics = {"batch/solved": 0.5, "reward/agent/mean": 0.5, "env/reward.math.unreadable": 0.125}
    metrics |= {"env/reward.code.unreadable": 0.25, "env/reward_disagreement": 0.75}
    expected = "solved  50.0%  reward  0.500  unreadable  25.0%  rewards disagree  75.0%      0 tokens/s"
    assert format_step(metrics, {}) == expected
    none = metrics | {name: 0.0 for name in metrics if name.startswith("env/")}
    assert format_step(none, {}) == "solved  50.0%  reward  0.500      0 tokens/s"


def test_logged_metrics_are_not_printed_twice(tracker: ConsoleTracker, lines: Lines) -> None:
    tracker.log(0, METRICS)
    tracker.close()
    assert lines() == []


def test_rewards_of_several_roles_are_averaged() -> None:
    assert "reward  0.750" in format_step({"reward/a/mean": 0.5, "reward/b/mean": 1.0}, {})
    assert format_step({}, {}) == "solved   0.0%      0 tokens/s"


def test_rewards_of_roles_follow_their_data_source() -> None:
    metrics = {"val/sum/pass@1": 0.25, "val/sum/reward": 0.5, "val/sum/reward/judge": 0.75}
    assert validation_metrics(metrics) == "sum: pass@1 0.250  reward 0.500  reward/judge 0.750"
    assert validation_metrics({}) == ""


def test_a_terminal_has_a_live_line(clock: Clock, run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(console.sys, "stdout", printed)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    tracker = ConsoleTracker(run, NoParams())
    tracker.on_train_start(2, 0)
    tracker.on_batch_end(console_step(0, total_steps=2))
    tracker.on_validation_end(1, {"val/guess/pass@1": 0.5})
    tracker.on_batch_end(console_step(1, total_steps=2))
    tracker.on_train_end(2)
    tracker.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.getvalue())
    assert "2/2" in text
    assert "validation after 1 step: guess: pass@1 0.500" in text
    assert "solved  25.0%" in text
    assert "1/2 steps  solved" not in text  # the plain lines are for where there is no terminal


def test_large_numbers_stay_short() -> None:
    assert format_step({**METRICS, "reward/agent/mean": 2.5e199}, {}).split("  ")[2:3] == ["reward 2.500e+199"]
    assert validation_metrics({"val/sum/reward": -1e200}) == "sum: reward -1.000e+200"
