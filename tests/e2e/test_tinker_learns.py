"""`rllm train guess` through the Tinker API: the real client over HTTP, LoRA, a server that the run starts itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
OFFLINE = ["rllm/backend=tinker", "tinker_base_url=local"]


def rllm(directory: Path, *words: str) -> str:
    command = [sys.executable, "-m", "rllm.cli.main", *words, f"training.default_local_dir={directory / 'states'}"]
    return subprocess.run(command, cwd=directory, check=True, timeout=800, capture_output=True, text=True).stdout


def test_guess_and_checkpoint_solve_90_of_100_games(tmp_path: Path) -> None:
    shorter = ["rllm.trainer.total_epochs=155", "rllm.algorithm.entropy.decay_steps=130"]
    rllm(tmp_path, "train", "guess", *OFFLINE, *shorter)
    run = tmp_path / "runs" / "rllm-training" / "guess-1"
    metrics = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["val/guess/pass@1"] >= 0.9
    evaluated = rllm(tmp_path, "eval", "guess", *OFFLINE, "--model", "runs/rllm-training/guess-1/checkpoints/latest")
    found = re.search(r"^guess +\d+ +\d+ +([\d.]+)", evaluated, re.MULTILINE)
    assert found is not None, evaluated
    assert float(found[1]) >= 0.9
