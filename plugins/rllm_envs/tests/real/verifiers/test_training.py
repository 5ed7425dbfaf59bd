"""Training with the model `tiny`, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    "rllm.rollout.n=4",
    "data.train_batch_size=2",
    "data.max_prompt_length=300",
    "data.max_response_length=8",
    "rllm.trainer.save_freq=1",
)
STEPS, KILLED_AFTER, DEADLINE = 3, 1, 250


def _start(directory: Path, *words: str) -> subprocess.Popen[bytes]:
    directory.mkdir(exist_ok=True)
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "rllm", "train", *words, *SMALL]
    return subprocess.Popen(command, cwd=directory, env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def _finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors.decode()


def _run(directory: Path) -> Path:
    return directory / "runs" / "rllm-training" / "default"


def _metrics(directory: Path) -> list[dict[str, Any]]:
    file = _run(directory) / "metrics.jsonl"
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return [line for line in lines if "actor/loss" in line]


def _weights(directory: Path) -> dict[str, bytes]:
    backend = _run(directory) / "checkpoints" / "latest" / "backend"
    return {path.name: path.read_bytes() for path in backend.rglob("*.safetensors")}


def test_two_steps_of_best_of_n(tmp_path: Path) -> None:
    _finish(_start(tmp_path, "verifiers:vf_adds", "rllm.env.env_args.env=best-of-n", "rllm.trainer.total_batches=2"))
    for step in _metrics(tmp_path):
        assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
        assert step["batch/ended_env_done"] == 1
        assert step["reward/agent/max"] > 0
    assert len(_metrics(tmp_path)) == 2


@pytest.mark.long
def test_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Rollouts run one by one. Otherwise the batches of the engine depend on time, and the weights up to rounding."""
    words = ("verifiers:vf_endless", f"rllm.trainer.total_batches={STEPS}", "rllm.workflow.n_parallel_tasks=1")
    _finish(_start(tmp_path / "whole", *words))
    killed = _start(tmp_path / "killed", *words)
    end = time.monotonic() + DEADLINE
    while len(_metrics(tmp_path / "killed")) < KILLED_AFTER:
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    _finish(_start(tmp_path / "killed", *words, "--resume"))
    assert len(_metrics(tmp_path / "whole")) == STEPS
    assert _weights(tmp_path / "killed") == _weights(tmp_path / "whole") != {}
