"""Training runs that tests kill: their metrics and weights so far, and the kill after some steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

RUN = "runs/rllm-training/*-1"


def training_metrics(directory: Path) -> list[dict[str, Any]]:
    """Return the metrics of the training steps of the first numbered run in `directory`."""
    lines = [line for file in directory.glob(f"{RUN}/metrics.jsonl") for line in file.read_text().splitlines()]
    return [line for line in map(json.loads, lines) if "actor/loss" in line]


def latest_weights(directory: Path) -> dict[str, bytes]:
    """Return the weight files of the latest checkpoint of the first numbered run in `directory`."""
    backend = directory.glob(f"{RUN}/checkpoints/latest/backend")
    return {path.name: path.read_bytes() for each in backend for path in each.rglob("*.safetensors")}


def kill_after(process: Any, directory: Path, steps: int, deadline: float) -> None:
    """Kill the process of the first numbered run in `directory` after `steps` training steps.

    Raises:
        AssertionError: it ended, or made fewer steps in `deadline` seconds.
    """
    end = time.monotonic() + deadline
    while len(training_metrics(directory)) < steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.kill()
    process.communicate()
