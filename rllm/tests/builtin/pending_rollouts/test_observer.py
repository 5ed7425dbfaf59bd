"""Warnings about rollouts that wait too long, and the file with pending rollouts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rllm.builtin.pending_rollouts.observer import PendingRolloutsObserver, PendingRolloutsParams, SlowWaits
from rllm_core.rollout.waits import PendingRollouts, PendingWait, WaitKind
from rllm_record.pending import PENDING, PendingFile, PendingRow, read_pending, write_pending

RUN = Path("/runs/guess-1")


def make_wait(since: float, kind: WaitKind = "tool", uid: str = "t:0") -> PendingWait:
    return PendingWait(uid=uid, turn=2, kind=kind, name="search", since=since)


class Medians(PendingRollouts):
    """Rollouts whose finished waits had these medians."""

    def __init__(self, **medians: float) -> None:
        super().__init__()
        self._medians = medians

    def median_seconds(self, kind: WaitKind) -> float | None:
        return self._medians.get(kind)


@pytest.mark.parametrize(("median", "limit"), [(0.1, 8.0), (0.8, 8.0), (3.0, 30.0), (None, 60.0)])
def test_wait_is_slow_after_ten_medians(median: float | None, limit: float) -> None:
    slow = SlowWaits(Medians() if median is None else Medians(tool=median), PendingRolloutsParams().slow_after)
    assert not slow.is_slow(make_wait(0.0), limit - 0.1)
    assert slow.is_slow(make_wait(0.0), limit)


def test_warning_has_task_turn_and_part() -> None:
    slow = SlowWaits(Medians(tool=0.1), 10.0)
    waits = [make_wait(0.0), make_wait(1.0, uid="t:1"), make_wait(5.0, uid="t:2")]
    assert list(slow.warnings(waits, 12.0, RUN)) == [
        "rollout 't:0', turn 2, has waited 12 s for the tool search (and 1 other rollout), to list all: "
        "rllm runs status /runs/guess-1"
    ]


def test_each_slow_wait_is_reported_once() -> None:
    slow, waits = SlowWaits(Medians(tool=0.1), 10.0), [make_wait(0.0)]
    assert len([line for now in range(20) for line in slow.warnings(waits, float(now), RUN)]) == 1


def test_warnings_about_one_kind_are_a_minute_apart() -> None:
    slow = SlowWaits(Medians(tool=0.1, reward=0.1), 8.0)
    first, second, reward = make_wait(0.0), make_wait(1.0, uid="t:1"), make_wait(1.0, "reward")
    assert len(list(slow.warnings([first], 10.0, RUN))) == 1
    assert len(list(slow.warnings([first, second, reward], 12.0, RUN))) == 1
    (late,) = slow.warnings([first, second, reward], 70.0, RUN)
    assert late.startswith("rollout 't:1'")


def test_file_of_a_run_is_written_and_removed(tmp_path: Path) -> None:
    row = PendingRow(rollout="t:0", turn=1, waits_for="model", name="", since=5.0, is_slow=False)
    write_pending(tmp_path, PendingFile(total=1, rows=[row]))
    assert read_pending(tmp_path) == PendingFile(total=1, rows=[row])
    (tmp_path / PENDING).write_text("{")
    assert read_pending(tmp_path) == PendingFile()


def test_observer_ends_without_a_started_run() -> None:
    observer = PendingRolloutsObserver(PendingRolloutsParams(slow_after=time.get_clock_info("monotonic").resolution))
    observer.end()
    observer.end()
