"""Training with the model `tiny`, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from killed_runs import kill_after, latest_weights, training_metrics

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


def test_two_steps_of_best_of_n(tmp_path: Path) -> None:
    _finish(_start(tmp_path, "verifiers:vf_adds", "rllm.env.env_args.env=best-of-n", "rllm.trainer.total_batches=2"))
    for step in training_metrics(tmp_path):
        assert step["env/gateway/trained_tokens"] == step["env/gateway/sampled_tokens"] > 0
        assert step["batch/ended_env_done"] == 1
        assert step["reward/agent/max"] > 0
    assert len(training_metrics(tmp_path)) == 2


@pytest.mark.long
def test_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Rollouts run one by one. Otherwise the batches of the engine depend on time, and the weights up to rounding."""
    words = ("verifiers:vf_endless", f"rllm.trainer.total_batches={STEPS}", "rllm.workflow.n_parallel_tasks=1")
    _finish(_start(tmp_path / "whole", *words))
    killed = _start(tmp_path / "killed", *words)
    kill_after(killed, tmp_path / "killed", KILLED_AFTER, DEADLINE)
    _finish(_start(tmp_path / "killed", *words, "--resume"))
    assert len(training_metrics(tmp_path / "whole")) == STEPS
    assert latest_weights(tmp_path / "killed") == latest_weights(tmp_path / "whole") != {}
