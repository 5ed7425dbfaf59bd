"""Seconds from the command to the end of the first step of a run with the backend verl, by phase of its start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

WORDS = (
    *("train", "sum", "rllm/backend=verl", "--profile", "cpu"),
    *("rllm.trainer.total_batches=1", "rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false"),
)
BEFORE, LAST = "starting the program", "making the first step"
PHASE = "verl: "
"""Start of the backend's line for a phase that begins."""
SYNCING = "bringing weights to the rollout servers"
FIRST_STEP = "1/"


def start_seconds(directory: Path) -> Mapping[str, float]:
    """Run the command in an empty directory. Return its seconds by phase. The last one begins with moving weights."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("rllm")), *WORDS],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        clocked = list(_clocked(lines))
    if process.wait():
        sys.exit(f"the run failed in {directory}")
    return by_phase(began, clocked)


def by_phase(began: float, lines: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Return the seconds of each phase, from the printed lines of a run and their times."""
    found: dict[str, float] = {}
    phase, since = BEFORE, began
    for now, line in lines:
        if line.startswith(FIRST_STEP):
            return found | {phase: now - since}
        if line.startswith(PHASE):
            found[phase] = now - since
            phase, since = line.removeprefix(PHASE), now
            if phase == SYNCING:
                phase = f"{SYNCING}, {LAST}"
    return found


def _clocked(lines: Iterable[str]) -> Iterator[tuple[float, str]]:
    for line in lines:
        yield time.monotonic(), line.rstrip()
