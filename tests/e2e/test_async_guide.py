"""docs/how-to/async.md: its unchanged examples work on the backend of the demo."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import blocks
from expecting import check_values

Rllm = Callable[..., subprocess.CompletedProcess[str]]
SMALL = (
    "rllm.trainer.total_batches=3",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.rollout.n=4",
    "rllm.rollout.n_val=1",
    "data.train_batch_size=4",
)


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Write the file of the guide."""
    (text,) = blocks("docs/how-to/async.md", "yaml")
    (tmp_path / "ahead.yaml").write_text(text, encoding="utf-8")
    return str(tmp_path / "ahead.yaml")


def test_the_dry_run_shows_what_the_configuration_means(rllm_here: Rllm, config: str) -> None:
    done = rllm_here("train", "guess", "--config", config, "--dry-run")
    assert done.returncode == 0, done.stderr
    check_values(done.stdout, "1 step. ", "1 update old", "of 1 step")


@pytest.mark.parametrize("partial", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_guess_trains_with_it(forked_rllm: Rllm, config: str, tmp_path: Path, partial: str) -> None:
    latest = f"rllm.async_training.partial_rollout={partial}"
    done = forked_rllm("train", "guess", "--config", config, latest, *SMALL)
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    steps = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    stale = [step["staleness/max"] for step in steps if "actor/loss" in step]
    assert len(stale) == 3
    assert max(stale) <= 1
