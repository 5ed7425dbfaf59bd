"""Models of checkpoints that are stored in parts, as real workers wrote them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rllm_core.errors import CheckpointError
from rllm_verl.model import open_model
from rllm_verl.state import fetch_model

from .conftest import RUN

Rllm = Callable[..., str]
WORDS = (
    *("train", "sum", "rllm/backend=verl", "--profile", "cpu", "--seed", "3", "rllm.env.env_args.largest=1"),
    *("trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.optim.lr=0.01"),
    *("rllm.trainer.total_batches=1", "rllm.rollout.n=4", "data.train_batch_size=8"),
    *("rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false"),
)
LORA = ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora.merge=true")
BACKEND = RUN / "checkpoints" / "latest" / "backend"
"""The backend's directory in the checkpoint of a run with two workers."""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_joined_shards_equal_the_model_merged_by_verl(rllm: Rllm, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    rllm(*WORDS)
    # As without `hf_model` in save_contents: verl leaves all of a model but its weights there.
    others = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(BACKEND / "model", BACKEND / "shards" / "huggingface", ignore=others)
    (tmp_path / "fetched").mkdir()
    fetch_model(BACKEND, tmp_path / "fetched")
    ours, verls = (
        AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).state_dict()
        for directory in (tmp_path / "fetched", BACKEND / "model")
    )
    assert ours.keys() == verls.keys()
    assert [name for name in ours if not torch.equal(ours[name], verls[name])] == []
    # Such a checkpoint is a model's name for this backend as well.
    shutil.rmtree(BACKEND / "model")
    (tmp_path / "opened").mkdir()
    opened = open_model(str(BACKEND.parent), seed=0, directory=tmp_path / "opened", without_thinking=False)
    assert (Path(opened.path) / "model.safetensors").is_file()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_lora_run_is_evaluated_and_exported(rllm: Rllm) -> None:
    (line,) = [line for line in rllm(*WORDS, *LORA).splitlines() if line.startswith("evaluate the model: ")]
    evaluate = [*line.removeprefix("evaluate the model: rllm ").split(), "--json", "rllm.env.env_args.largest=1"]
    scores = []
    for words in ((), ("--backend", "local")):
        (environment,) = json.loads(rllm(*evaluate, *words))["environments"]
        scores.append(float(environment["passes"]["1"]["value"]))
    assert scores[0] == pytest.approx(scores[1], abs=0.5)
    for form in ("adapter", "merged"):
        rllm("export", str(RUN), "--to", form, "--output", form)
    adapter = load_file("adapter/adapter_model.safetensors")
    of_checkpoint = load_file(BACKEND / "model" / "adapter_model.safetensors")
    assert all(torch.equal(tensor, of_checkpoint[name]) for name, tensor in adapter.items())
    assert [tensor for name, tensor in adapter.items() if "lora_B" in name and tensor.any()]
    assert {tensor.shape[0] for name, tensor in adapter.items() if "lora_A" in name} == {8}
    assert json.loads(Path("adapter/adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    assert Path("merged/config.json").is_file()


def test_what_cannot_be_put_together_says_why(tmp_path: Path) -> None:
    made_by = {"model": "abc", "workers": 2, "strategy": "fsdp", "verl": "0.9.1", "base": "tiny"}
    (tmp_path / "made_by.json").write_text(json.dumps(made_by | {"seed": 0, "lora_rank": 0}))
    (tmp_path / "shards").mkdir()
    with pytest.raises(CheckpointError, match=r"verl's own files \(strategy fsdp\).*pickles") as caught:
        fetch_model(tmp_path, tmp_path)
    assert "python -m verl.model_merger merge" in caught.value.hint
    (tmp_path / "shards" / "rank_0.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"rank_1\.safetensors is missing: 2 workers"):
        fetch_model(tmp_path, tmp_path)
