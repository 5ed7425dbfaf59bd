"""`rllm train reasoning_gym:GENERATOR`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Rllm = Callable[..., subprocess.CompletedProcess[str]]
SHORT = ("rllm.trainer.total_batches=2", "rllm.rollout.n=2", "data.train_batch_size=4", "data.max_response_length=8")
OPTIONS = ("rllm.env.env_args.level=1", "rllm.env.env_args.val_size=4", "rllm.env.env_args.system_prompt=direct")


def test_it_trains_by_name(rllm: Rllm, tmp_path: Path) -> None:
    done = rllm("train", "reasoning_gym:chain_sum", *SHORT, *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (metrics,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    steps = list(map(json.loads, metrics.read_text().splitlines()))
    assert sum("val/chain_sum/pass@1" in step for step in steps) == 2


def test_a_wrong_name_stops_a_dry_run(rllm: Rllm) -> None:
    done = rllm("train", "reasoning_gym:chain_summ", "--dry-run")
    assert done.returncode == 2
    assert "Did you mean 'chain_sum'" in done.stderr
