"""`rllm train` with vLLM as the rollout engine, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_run_trains_on_what_vllm_samples(directory: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "rllm"),
            *("train", "sum", f"model.name={directory}", "rllm.rollout.engine=vllm", "rllm.trainer.total_batches=3"),
            *("data.train_batch_size=8", "rllm.rollout.n=4", "local.max_concurrency=32", "local.kv_cache_gib=0.25"),
            *("rllm.algorithm.rollout_correction.bypass_mode=false", "model.device=cpu"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").glob("*/*")
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    differences = [step["actor/rollout_logprob_difference"] for step in steps if "actor/loss" in step]
    assert len(differences) == 3
    assert max(differences) < 1e-3
    plugins = json.loads((run / "plugins.json").read_text())
    assert {"kind": "engine", "name": "vllm", "distribution": "rllm-vllm", "version": "0.1.0"} in plugins
