"""Every loss in a run of the real command, selected only by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rllm.cli.main import main

Metrics = list[dict[str, float]]
Train = Callable[..., Metrics]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """`rllm train sum` with a loss; returns what the training steps logged."""
    monkeypatch.chdir(tmp_path)

    def run(loss: str, steps: int, *words: str) -> Metrics:
        only_training = (
            "rllm.trainer.test_freq=-1",
            "rllm.trainer.val_before_train=false",
            "rllm.trainer.save_freq=-1",
        )
        length = f"rllm.trainer.total_batches={steps}"
        code = main(["train", "sum", "--loss", loss, length, "--overwrite", *only_training, *words])
        assert code == 0, capsys.readouterr().err
        lines = Path("runs/rllm-training/default/metrics.jsonl").read_text().splitlines()
        return [metrics for metrics in map(json.loads, lines) if "actor/loss" in metrics]

    return run


@pytest.mark.long
def test_shared_config_keys_and_own_options_reach_the_loss(train: Train) -> None:
    """The same seed each time, so that a gradient that differs differs only because of the options."""
    cispo = [train("cispo", 1, f"rllm.algorithm.eps_clip={bound}")[0] for bound in (0.2, 1e-9)]
    ppo = [train("ppo", 1)[0], train("ppo", 1, "rllm.algorithm.loss_fn={name: ppo, clip_ratio_c: 1.0001}")[0]]
    for first, second in (cispo, ppo):
        assert first["reward/agent/mean"] == second["reward/agent/mean"]
        assert first["actor/grad_norm"] != second["actor/grad_norm"]
