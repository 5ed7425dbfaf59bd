"""Runs of `rllm train` with vLLM behind verl on a CPU: a minute or two each, and 7 GB of memory."""

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
from typing import Any

import psutil
import pytest
from heads_of_32 import save_model

MARK = "RLLM_TEST_RUN"
LIMIT = 900
"""Seconds: a run that takes so long hangs."""
END = 15
"""Seconds in which processes go when their run has ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(LIMIT + 60))


@dataclass(frozen=True)
class CompletedRun:
    """A run that has ended."""

    returned: int
    said: str
    steps: Sequence[dict[str, Any]]
    """Metrics of its training steps."""
    left: Sequence[str]
    """Names of processes that it left behind."""


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head size vLLM's kernels for CPUs know."""
    path = tmp_path_factory.mktemp("model")
    save_model(path)
    return path


@pytest.fixture
def train(directory: Path, tmp_path: Path) -> Callable[..., CompletedRun]:
    """Runs `rllm train guess` on that model with further words."""

    def run(*words: str) -> CompletedRun:
        mark = uuid.uuid4().hex
        program = str(Path(sys.executable).with_name("rllm"))
        command = [program, "train", "guess", "rllm/backend=verl", "--profile", "cpu_vllm", "--model", str(directory)]
        done = subprocess.run(
            [*command, "data.train_batch_size=8", "rllm.rollout.n=4", "rllm.trainer.val_before_train=false", *words],
            cwd=tmp_path,
            env=os.environ | {MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        lines = [line for file in tmp_path.glob("runs/*/*/metrics.jsonl") for line in file.read_text().splitlines()]
        steps = [step for step in map(json.loads, lines) if "actor/loss" in step]
        return CompletedRun(done.returncode, done.stdout, steps, _find_leftovers(mark))

    return run


def _find_leftovers(mark: str) -> list[str]:
    deadline = time.monotonic() + END
    while (alive := [each for each in psutil.process_iter() if _mark_of(each) == mark]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [process.name() for process in alive]


def _mark_of(process: psutil.Process) -> str | None:
    try:
        mark: str | None = process.environ().get(MARK)
    except psutil.Error:
        return None
    return mark
