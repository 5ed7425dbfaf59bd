"""A run that is stopped while Ray, workers and servers start: it ends at once, and leaves nothing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from expecting import check_values

from .conftest import training

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

AT_ONCE = 120.0
"""Seconds. Nothing of the start is waited for but Ray itself; the rest is what a busy machine needs."""


@pytest.mark.parametrize(
    ("phase", "number"), [("starting Ray", signal.SIGINT), ("starting the rollout servers", signal.SIGTERM)]
)
def test_signal_during_start_stops_without_leftovers(tmp_path: Path, phase: str, number: signal.Signals) -> None:
    with training(tmp_path, "sum") as run:
        run.wait_until(lambda: f"verl: {phase}\n" in run.read_output(), seconds=400)
        time.sleep(1)  # the phase has begun, and none of them is over so soon
        run.process.send_signal(number)
        run.process.wait(timeout=AT_ONCE)
        said = run.read_output()
        assert run.process.returncode == 128 + number, said
        check_values(said, "stopped before", "runs/rllm-training/sum-1")
        assert "Traceback" not in said
        run.wait_until_nothing_is_alive(AT_ONCE)
