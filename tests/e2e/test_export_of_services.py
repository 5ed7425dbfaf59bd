"""`rllm export` of runs whose checkpoints contain no model, so the backend writes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

RUN = "runs/rllm-training/guess-1"
QUICK = (
    "rllm.trainer.total_batches=1",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.rollout.n=2",
    "data.train_batch_size=4",
    "--seed=3",
)


@pytest.mark.smoke
def test_tinker_adapter_is_exported_and_merged(forked_rllm: Any, rllm_here: Any, tmp_path: Path) -> None:
    offline = ("rllm/backend=tinker", "tinker_base_url=local", "training.default_local_dir=kept", "model.lora_rank=4")
    done = forked_rllm("train", "guess", *offline, *QUICK)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("kept/*/weights/*")
    assert rllm_here("export", RUN, "--to", "adapter", "--output", "adapter").returncode == 0
    adapter, expected = (load_file(each / "adapter_model.safetensors") for each in (tmp_path / "adapter", kept))
    assert {name: tensor.tolist() for name, tensor in adapter.items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }
    # It identifies the weights of `tiny` by their digest, and rejects weights from a different seed.
    merged = rllm_here("export", RUN, "--to", "merged", "--output", "merged")
    assert merged.returncode == 0, merged.stderr
    assert rllm_here("eval", "guess", "--model", "merged", "rllm.rollout.n_val=1").returncode == 0

    shutil.rmtree(kept)
    gone = rllm_here("export", RUN, "--to", "adapter")
    assert gone.returncode == 1
    assert "(training.default_local_dir)" in gone.stderr
    file = tmp_path / RUN / "checkpoints/latest/backend/tinker.json"
    state = json.loads(file.read_text()) | {"service": "https://service.example", "kept_in": None}
    file.write_text(json.dumps(state))
    elsewhere = rllm_here("export", RUN, "--to", "adapter")
    assert f"tinker checkpoint download {state['path']}" in elsewhere.stderr
