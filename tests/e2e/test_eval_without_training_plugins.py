"""A checkpoint is evaluated on a machine without plugins that were used only for its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

RUN = Path("runs/rllm-training/default")
GONE = {
    "adv_estimator": ("algorithm", "adv_estimator", "gone/mine"),
    "loss_fn": ("algorithm", "loss_fn", "gone/mine"),
    "estimator_map": ("algorithm", "estimator_map", {"agent": "gone/mine"}),
    "logger": ("trainer", "logger", ["gone/mine"]),
}


@pytest.fixture
def trained(rllm_here: Any, tmp_path: Path) -> Path:
    words = ("rllm.trainer.total_batches=1", "rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false")
    assert rllm_here("train", "sum", *words).returncode == 0
    return tmp_path / RUN


@pytest.mark.long
@pytest.mark.parametrize("backend", [(), ("--backend", "local")])
def test_run_is_evaluated_without_its_training_plugins(rllm_here: Any, trained: Path, backend: tuple[str, ...]) -> None:
    file = trained / "config.yaml"
    config = yaml.safe_load(file.read_text())
    for section, key, value in GONE.values():
        config["rllm"][section][key] = value
    file.write_text(yaml.safe_dump(config))
    ended = rllm_here("eval", "sum", "--model", str(RUN / "checkpoints/latest"), *backend)
    assert ended.returncode == 0, ended.stderr
    assert "the config of runs/rllm-training/default" in ended.stderr
