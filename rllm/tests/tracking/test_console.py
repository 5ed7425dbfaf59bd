"""What a run prints where there is no terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from rllm.tracking import console
from rllm.tracking.console import ConsoleTracker, step_metrics, validation_metrics
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep

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


def _step(global_step: int, total_steps: int = 100, **fields: Any) -> TrainStep:
    return TrainStep(
        global_step=global_step, epoch=0, total_steps=total_steps, tasks=[], metrics=dict(METRICS), **fields
    )


def test_line_has_step_metrics_and_time_left(tracker: ConsoleTracker, clock: Clock, lines: Lines) -> None:
    tracker.on_train_start(100, 0)
    clock["now"] += 10
    tracker.on_batch_end(_step(9))
    assert lines() == ["step 10/100  solved  25.0%  reward  0.500   1234 tokens/s  1:30 left"]
    clock["now"] += 10
    tracker.on_batch_end(_step(10, skip_reason="all_groups_rejected"))
    assert "(no update: all groups rejected)" in lines()[1]


def test_lines_are_five_seconds_apart(tracker: ConsoleTracker, clock: Clock, lines: Lines) -> None:
    tracker.on_train_start(8, 0)
    for step in range(8):
        clock["now"] += 2
        tracker.on_batch_end(_step(step, total_steps=8))
    assert [line.split()[1] for line in lines()] == ["1/8", "4/8", "7/8", "8/8"]


def test_a_resumed_run_measures_from_its_start(tracker: ConsoleTracker, clock: Clock, lines: Lines) -> None:
    tracker.on_train_start(100, 90)
    clock["now"] += 6
    tracker.on_batch_end(_step(91))
    first, second = lines()
    assert first == "resuming after step 90 of 100"
    assert second.endswith("0:24 left")


def test_a_long_line_is_not_broken(tracker: ConsoleTracker, lines: Lines) -> None:
    tracker.on_validation_end(5, {f"val/source_{index}/pass@1": 0.5 for index in range(30)})
    assert len(lines()) == 1


def test_validation_has_a_line_with_all_data_sources(tracker: ConsoleTracker, lines: Lines) -> None:
    tracker.on_validation_end(5, {"val/openai/gsm8k/pass@1": 0.25, "val/openai/gsm8k/reward": 0.5, "val/[bold]/x": 1.0})
    assert lines() == ["validation after step 5: openai/gsm8k: pass@1 0.250  reward 0.500; [bold]: x 1.000"]


def test_logged_metrics_are_not_printed_twice(tracker: ConsoleTracker, lines: Lines) -> None:
    tracker.log(0, METRICS)
    tracker.close()
    assert lines() == []


def test_rewards_of_several_roles_are_averaged() -> None:
    assert "reward  0.750" in step_metrics({"reward/a/mean": 0.5, "reward/b/mean": 1.0})
    assert step_metrics({}) == "solved   0.0%      0 tokens/s"


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
    tracker.on_batch_end(_step(0, total_steps=2))
    tracker.on_validation_end(1, {"val/guess/pass@1": 0.5})
    tracker.on_batch_end(_step(1, total_steps=2))
    tracker.on_train_end(2)
    tracker.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.getvalue())
    assert "2/2" in text
    assert "validation after step 1: guess: pass@1 0.500" in text
    assert "solved  25.0%" in text
    assert "step 1/2  solved" not in text  # the plain lines are for where there is no terminal


def test_large_numbers_stay_short() -> None:
    assert step_metrics({**METRICS, "reward/agent/mean": 2.5e199}).split("  ")[2:3] == ["reward 2.500e+199"]
    assert validation_metrics({"val/sum/reward": -1e200}) == "sum: reward -1.000e+200"
