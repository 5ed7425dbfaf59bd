"""A run that is stopped while Ray, workers and servers start: it ends at once, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from expecting import check_values

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MARK = "RLLM_TEST_RUN"
AT_ONCE = 120.0
"""Seconds. Nothing of the start is waited for but Ray itself; the rest is what a busy machine needs."""


def alive(mark: str) -> list[psutil.Process]:
    """Processes that inherited a command's environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("starting Ray", signal.SIGINT),
        ("starting the training workers", signal.SIGTERM),
        ("starting the rollout servers", signal.SIGINT),
    ],
)
def test_a_signal_while_the_backend_starts_ends_it_and_leaves_nothing(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    mark, said = uuid.uuid4().hex, tmp_path / "said.txt"
    command = [str(Path(sys.executable).with_name("rllm")), "train", "sum", "rllm/backend=verl", "--profile", "cpu"]
    with said.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=os.environ | {MARK: mark},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        while f"verl: {phase}\n" not in said.read_text():
            assert process.poll() is None, said.read_text()
            time.sleep(0.1)
        time.sleep(1)  # the phase has begun, and none of them is over so soon
        process.send_signal(number)
        process.wait(timeout=AT_ONCE)
        assert process.returncode == 128 + number, said.read_text()
        check_values(said.read_text(), "stopped before", "runs/rllm-training/default")
        assert "Traceback" not in said.read_text()
        deadline = time.monotonic() + AT_ONCE
        while left := alive(mark):
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
    finally:
        for left_behind in alive(mark):
            left_behind.kill()
        process.wait()
