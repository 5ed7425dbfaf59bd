"""`rllm sft` and `rllm prefer` with backend verl: the loss falls, and the record explains it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from expecting import check_values

from .conftest import training_steps

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


def test_loss_falls_and_its_record_is_checked(rllm: Callable[..., str]) -> None:
    rows = [{"prompt": f"{number} plus 1 is", "completion": str(number + 1)} for number in range(16)]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rllm("sft", *WORDS, *VERL)
    run = Path("runs/rllm-sft/run-1")
    first, second = training_steps(run)
    assert second["actor/loss"] < first["actor/loss"]
    check_values(rllm("record", "check", str(run)), "2 optimizer steps of 2 steps")


def test_preferences_are_learnt_as_on_the_backend_local(rllm: Callable[..., str]) -> None:
    pairs = [
        {"prompt": f"{number} plus 1 is", "chosen": str(number + 1), "rejected": f"not {number + 1}"}
        for number in range(16)
    ]
    Path("train.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    for backend in (VERL, LOCAL):
        rllm("prefer", *WORDS, *backend)
    verl, local = (training_steps(Path("runs/rllm-prefer", name)) for name in ("run-1", "local"))
    assert verl[0]["actor/grad_norm"] == pytest.approx(local[0]["actor/grad_norm"], rel=1e-5)
    losses = [step["preference/loss"] for step in verl]
    assert losses == pytest.approx([step["preference/loss"] for step in local], rel=1e-3)
    assert losses[1] < losses[0]
    rllm("record", "check", "runs/rllm-prefer/run-1")
