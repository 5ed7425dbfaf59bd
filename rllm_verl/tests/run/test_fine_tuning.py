"""`rllm sft` and `rllm prefer` with backend verl: the loss falls, and the record explains it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from expecting import check_values

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WORDS = (
    "--data",
    "train.jsonl",
    "rllm.trainer.total_batches=2",
    "data.train_batch_size=8",
    "rllm.record=tokens",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
)
VERL = ("rllm/backend=verl", "--profile", "cpu", "actor_rollout_ref.actor.optim.lr=0.003")
LOCAL = ("rllm.trainer.experiment_name=local", "training.learning_rate=0.003")


def rllm(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("rllm")), *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def metrics(run: Path, name: str) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def test_loss_falls_and_its_record_is_checked(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number} plus 1 is", "completion": str(number + 1)} for number in range(16)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = rllm(tmp_path, "sft", *WORDS, *VERL)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "rllm-sft" / "default"
    losses = metrics(run, "actor/loss")
    assert losses[1] < losses[0]
    checked = rllm(tmp_path, "record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    check_values(checked.stdout, "2 optimizer steps of 2 steps")


def test_preferences_are_learnt_as_on_the_backend_local(tmp_path: Path) -> None:
    pairs = [
        {"prompt": f"{number} plus 1 is", "chosen": str(number + 1), "rejected": f"not {number + 1}"}
        for number in range(16)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    for backend in (VERL, LOCAL):
        done = rllm(tmp_path, "prefer", *WORDS, *backend)
        assert done.returncode == 0, done.stderr
    verl, local = (tmp_path / "runs" / "rllm-prefer" / name for name in ("default", "local"))
    norms, losses = metrics(verl, "actor/grad_norm"), metrics(verl, "preference/loss")
    assert norms[0] == pytest.approx(metrics(local, "actor/grad_norm")[0], rel=1e-5)
    assert losses == pytest.approx(metrics(local, "preference/loss"), rel=1e-3)
    assert losses[1] < losses[0]
    checked = rllm(tmp_path, "record", "check", str(verl))
    assert checked.returncode == 0, checked.stdout + checked.stderr
