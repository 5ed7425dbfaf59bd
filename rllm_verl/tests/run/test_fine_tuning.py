"""`rllm sft` with backend verl: the loss falls, and the record explains it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from expecting import check_values

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WORDS = (
    "sft",
    "--data",
    "train.jsonl",
    "rllm/backend=verl",
    "--profile",
    "cpu",
    "rllm.trainer.total_batches=2",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.optim.lr=0.003",
    "rllm.record=tokens",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
)


def rllm(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("rllm")), *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_loss_falls_and_its_record_is_checked(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number} plus 1 is", "completion": str(number + 1)} for number in range(16)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = rllm(tmp_path, *WORDS)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "rllm-sft" / "default"
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = [line["actor/loss"] for line in lines if "actor/loss" in line]
    assert losses[1] < losses[0]
    checked = rllm(tmp_path, "record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    check_values(checked.stdout, "2 optimiser steps of 2 steps")
