"""Runs `rllm train` and checks its metrics, its processes, and the memory of devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from smoke_sides.expectations import Metrics

MARK = "RLLM_SMOKE_RUN"
LIMIT = 1200.0
"""Time limit of a run in seconds."""
END = 30.0
"""Seconds in which processes and their memory disappear after the end of their run."""
BETWEEN_LOOKS = 0.2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run that has ended."""

    returned: int | None
    """The exit code. None if the run was stopped after `LIMIT`."""
    seconds: float
    steps: Sequence[Metrics]
    log: Path
    left: Sequence[str] = ()
    """Processes that still ran after it."""


def run(words: Sequence[str], directory: Path, kill_behind: int | None = None) -> Outcome:
    """Run `rllm` with `words` in `directory`.

    Args:
        words: arguments of the command.
        directory: gets ``runs`` and the log.
        kill_behind: step whose checkpoint triggers a SIGKILL. None: the run ends by itself.
    """
    directory.mkdir(parents=True, exist_ok=True)
    mark, log, started = uuid.uuid4().hex, directory / "log.txt", time.monotonic()
    program = [sys.executable, "-m", "rllm", *words]
    with log.open("ab") as file:
        process = subprocess.Popen(
            program, cwd=directory, env=os.environ | {MARK: mark}, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            _until(lambda: process.poll() is not None or _saved(directory, kill_behind), LIMIT)
            hangs = process.poll() is None and not _saved(directory, kill_behind)
        finally:
            if process.poll() is None:
                process.kill()
            returned = process.wait()
    left = lambda: [each for each in psutil.process_iter() if _mark_of(each) == mark]  # noqa: E731
    _until(lambda: not left(), END)
    names = [f"{each.pid} {each.name()}" for each in left()]
    for each in left():
        each.kill()
    return Outcome(
        returned=None if hangs else returned,
        seconds=time.monotonic() - started,
        steps=read_steps(directory),
        log=log,
        left=names,
    )


def read_steps(directory: Path) -> list[Metrics]:
    """Return the metrics of training steps in a directory's run."""
    lines = [line for file in directory.glob("runs/*/*/metrics.jsonl") for line in file.read_text().splitlines()]
    return [step for step in map(json.loads, lines) if "actor/loss" in step]


def _saved(directory: Path, step: int | None) -> bool:
    return step is not None and any(directory.glob(f"runs/*/*/checkpoints/step_{step:06d}"))


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(BETWEEN_LOOKS)


def _mark_of(process: psutil.Process) -> str | None:
    try:
        mark: str | None = process.environ().get(MARK)
    except psutil.Error:
        return None
    return mark
