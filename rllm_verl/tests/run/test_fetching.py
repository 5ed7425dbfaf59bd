"""Models of checkpoints that are stored in parts, as real workers wrote them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rllm_core.errors import CheckpointError
from rllm_verl.fetching import fetch_model
from rllm_verl.model import open_model

RLLM = str(Path(sys.executable).with_name("rllm"))
WORDS = (
    *("train", "sum", "rllm/backend=verl", "--profile", "cpu", "--seed", "3"),
    *("trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.optim.lr=0.01"),
    *("rllm.trainer.total_batches=1", "rllm.rollout.n=4", "data.train_batch_size=8"),
    *("rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false"),
)
LORA = ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora.merge=true")


def trained(directory: Path, *words: str) -> Path:
    """The backend's directory in the checkpoint of a run with two workers; ``said.txt`` is what the run printed."""
    ended = subprocess.run([RLLM, *WORDS, *words], cwd=directory, check=True, timeout=500, stdout=subprocess.PIPE)
    (directory / "said.txt").write_bytes(ended.stdout)
    return directory / "runs/rllm-training/default/checkpoints/latest/backend"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_parts_of_all_workers_are_the_model_that_verl_puts_together(tmp_path: Path) -> None:
    backend = trained(tmp_path)
    # As without `hf_model` in save_contents: verl leaves all of a model but its weights there.
    others = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(backend / "model", backend / "shards" / "huggingface", ignore=others)
    (tmp_path / "fetched").mkdir()
    fetch_model(backend, tmp_path / "fetched")
    ours, verls = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).state_dict()
        for directory in (tmp_path / "fetched", backend / "model")
    )
    assert ours.keys() == verls.keys()
    assert [name for name in ours if not torch.equal(ours[name], verls[name])] == []
    # Such a checkpoint is a model's name for this backend as well.
    shutil.rmtree(backend / "model")
    (tmp_path / "opened").mkdir()
    opened = open_model(str(backend.parent), seed=0, directory=tmp_path / "opened", without_thinking=False)
    assert (Path(opened.path) / "model.safetensors").is_file()


def score_printed_command(directory: Path, *words: str) -> float:
    """Return pass@1 of the command that the run printed for generating with its model."""
    lines = (directory / "said.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("evaluate the model: ")]
    options = line.removeprefix("evaluate the model: rllm ").split()
    command = [RLLM, *options, "--json", "rllm.env.env_args.largest=1", *words]
    ended = subprocess.run(command, cwd=directory, check=True, timeout=500, stdout=subprocess.PIPE)
    (environment,) = json.loads(ended.stdout)["environments"]
    return float(environment["passes"]["1"]["value"])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_lora_run_is_evaluated_and_exported(tmp_path: Path) -> None:
    kept = trained(tmp_path, *LORA, "rllm.env.env_args.largest=1") / "model"
    assert score_printed_command(tmp_path) == pytest.approx(
        score_printed_command(tmp_path, "--backend", "local"), abs=0.5
    )
    run = "runs/rllm-training/default"
    for form in ("adapter", "merged"):
        subprocess.run([RLLM, "export", run, "--to", form, "--output", form], cwd=tmp_path, check=True, timeout=100)
    adapter = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    of_checkpoint = load_file(kept / "adapter_model.safetensors")
    assert all(torch.equal(tensor, of_checkpoint[name]) for name, tensor in adapter.items())
    moved = [tensor for name, tensor in adapter.items() if "lora_B" in name and tensor.any()]
    assert moved
    assert {tensor.shape[0] for name, tensor in adapter.items() if "lora_A" in name} == {8}
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    assert (tmp_path / "merged" / "config.json").is_file()


def test_what_cannot_be_put_together_says_why(tmp_path: Path) -> None:
    made_by = {
        "model": "abc",
        "workers": 2,
        "strategy": "fsdp",
        "verl": "0.9.1",
        "base": "tiny",
        "seed": 0,
        "lora_rank": 0,
    }
    (tmp_path / "made_by.json").write_text(json.dumps(made_by))
    (tmp_path / "shards").mkdir()
    with pytest.raises(CheckpointError, match=r"verl's own files \(strategy fsdp\).*pickles") as caught:
        fetch_model(tmp_path, tmp_path)
    assert "python -m verl.model_merger merge" in caught.value.hint
    (tmp_path / "shards" / "rank_0.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"rank_1\.safetensors is missing: 2 workers"):
        fetch_model(tmp_path, tmp_path)
