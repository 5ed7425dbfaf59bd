"""`rllm train` that generates rollout batches ahead, with a rollout server on a separate GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(400)

WORDS = (
    "train",
    "guess",
    "rllm/backend=verl",
    "--profile",
    "cpu",
    "actor_rollout_ref.rollout.nnodes=1",
    "rllm.async_training.enable=true",
    "rllm.async_training.staleness_threshold=1",
    "rllm.async_training.partial_rollout=true",
    "data.train_batch_size=4",
    "rllm.rollout.n=4",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
)
MARK = "RLLM_TEST_RUN"


@dataclass
class Run:
    """One command, and all processes that it started."""

    directory: Path
    process: subprocess.Popen[bytes]
    mark: str

    def metrics(self) -> list[dict[str, Any]]:
        file = self.directory / "runs" / "rllm-training" / "default" / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if "staleness/max" in line]

    def alive(self) -> list[psutil.Process]:
        """Processes that inherited this run's environment."""
        return [process for process in psutil.process_iter() if _mark_of(process) == self.mark]

    def read_output(self) -> str:
        return (self.directory / "said.txt").read_text()


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:
        return None


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Any]:
    runs: list[Run] = []

    def begun(*words: str) -> Run:
        mark, said = uuid.uuid4().hex, tmp_path / "said.txt"
        command = [str(Path(sys.executable).with_name("rllm")), *WORDS, *words]
        with said.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=tmp_path, env=os.environ | {MARK: mark}, stdout=file, stderr=subprocess.STDOUT
            )
        runs.append(Run(tmp_path, process, mark))
        return runs[-1]

    yield begun
    for run in runs:
        for process in run.alive():
            process.kill()
        run.process.wait()


@pytest.mark.nightly
def test_run_with_batches_ahead_ends(begin: Any) -> None:
    run = begin("rllm.trainer.total_batches=4")
    assert run.process.wait(timeout=500) == 0, run.read_output()
    stale = [line["staleness/max"] for line in run.metrics()]
    assert len(stale) == 4
    assert max(stale) == 1


# One test: the start of the run takes most of the time.
@pytest.mark.long
def test_staleness_keeps_its_bound_until_a_killed_server_ends_the_run(begin: Any) -> None:
    run = begin("rllm.trainer.total_batches=100000")
    deadline = time.monotonic() + 300
    while len(run.metrics()) < 4:
        assert time.monotonic() < deadline
        assert run.process.poll() is None, run.read_output()
        time.sleep(0.1)
    stale = [line["staleness/max"] for line in run.metrics()]
    assert stale[0] == 0
    assert max(stale) == 1
    (server,) = [process for process in run.alive() if "RolloutServer" in " ".join(process.cmdline())]
    server.kill()
    assert run.process.wait(timeout=500) != 0
    said = run.read_output()
    assert f"rollout server 0 (process {server.pid} on" in said
    assert "--resume" in said
    while left := run.alive():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
