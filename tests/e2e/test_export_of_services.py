"""`rllm export` of runs whose checkpoints contain no model, so the backend writes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

RUN = "runs/rllm-training/default"
QUICK = (
    "rllm.trainer.total_batches=1",
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.rollout.n=2",
    "data.train_batch_size=4",
    "--seed=3",
)


@pytest.fixture
def of_tinker(forked_rllm: Any, tmp_path: Path) -> Path:
    """Return the directory of a finished run's checkpoint on the local server."""
    offline = ("rllm/backend=tinker", "tinker_base_url=local", "training.default_local_dir=kept", "model.lora_rank=4")
    done = forked_rllm("train", "guess", *offline, *QUICK)
    assert done.returncode == 0, done.stderr
    (kept,) = tmp_path.glob("kept/*/weights/*")
    return kept


@pytest.mark.long
def test_the_adapter_of_a_tinker_run_is_peft_s_and_can_be_merged(
    of_tinker: Path, forked_rllm: Any, tmp_path: Path
) -> None:
    assert forked_rllm("export", RUN, "--to", "adapter", "--output", "adapter").returncode == 0
    adapter, kept = (
        load_file(directory / "adapter_model.safetensors") for directory in (tmp_path / "adapter", of_tinker)
    )
    assert {name: tensor.tolist() for name, tensor in adapter.items()} == {
        name: tensor.tolist() for name, tensor in kept.items()
    }
    # It identifies the weights of `tiny` by their digest, and rejects weights from a different seed.
    merged = forked_rllm("export", RUN, "--to", "merged", "--output", "merged")
    assert merged.returncode == 0, merged.stderr
    assert forked_rllm("eval", "guess", "--model", "merged", "rllm.rollout.n_val=1").returncode == 0


@pytest.mark.long
def test_a_tinker_run_whose_files_are_gone_or_elsewhere_says_where(
    of_tinker: Path, rllm_here: Any, tmp_path: Path
) -> None:
    shutil.rmtree(of_tinker)
    gone = rllm_here("export", RUN, "--to", "adapter")
    assert gone.returncode == 1
    assert "(training.default_local_dir)" in gone.stderr
    file = tmp_path / RUN / "checkpoints/latest/backend/tinker.json"
    state = json.loads(file.read_text()) | {"service": "https://service.example", "kept_in": None}
    file.write_text(json.dumps(state))
    elsewhere = rllm_here("export", RUN, "--to", "adapter")
    assert f"tinker checkpoint download {state['path']}" in elsewhere.stderr
