"""`rllm train --objective echo`: a run with observations in its loss, its record, and settings that cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values

TURNS = ("train", "guess", "data.max_response_length=2", "rllm.trainer.total_batches=12", "rllm.rollout.n=4")
ECHO = (*TURNS, "--objective", "echo", "data.train_batch_size=16", "rllm.trainer.test_freq=-1")
INSERT = "rllm.pipeline.insert=[{stage: {name: echo, roles: [tool]}, after: advantages}]"


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (("rllm.pipeline.insert=[{stage: {name: echo, weight: 0}, after: advantages}]",), "wrong-value", "weight"),
        (("rllm.pipeline.remove=[advantages]",), "unknown-stage", "advantages"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_errors(rllm_here: Any, words: tuple[str, ...], code: str, value: str) -> None:
    done = rllm_here(*ECHO, *words, "--dry-run")
    assert done.returncode != 0
    check_printed(done.stderr, code, value)


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_run_predicts_observations_and_its_record_is_checked(forked_rllm: Any, tmp_path: Path) -> None:
    done = forked_rllm(*ECHO, "rllm.record=tokens", "rllm.trainer.val_before_train=false")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "rllm-training" / "default"
    lines = list(map(json.loads, (run / "metrics.jsonl").read_text().splitlines()))
    losses = [line["actor/observation_loss"] for line in lines if "actor/observation_loss" in line]
    assert losses[-1] < 0.9 * losses[0]
    assert all(line["echo/tokens"] > 0 for line in lines if "echo/tokens" in line)
    checked = forked_rllm("record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    uid = forked_rllm("why", str(run), "0").stdout.splitlines()[1].split()[0]
    check_values(forked_rllm("why", str(run), "0", uid, "--token", "0").stdout, "policy loss")


@pytest.mark.long
def test_roles_without_messages_train_nothing(forked_rllm: Any, tmp_path: Path) -> None:
    done = forked_rllm(*TURNS, INSERT, "rllm.trainer.total_batches=1", "rllm.trainer.val_before_train=false")
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, (tmp_path / "runs/rllm-training/default/metrics.jsonl").read_text().splitlines()[:1])
    assert line["echo/tokens"] == 0
    assert "actor/observation_loss" not in line
