"""What a checkpoint says of who made it, and the shards of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from expecting import check_values, expect_error

from rllm_core.errors import CheckpointError
from rllm_local import tiny
from rllm_verl.state import (
    CheckpointMetadata,
    check_metadata,
    check_resumable,
    model_digest,
    move_model,
    write_metadata,
)
from rllm_verl.worker_group import load_shard, save_shard

MADE_BY = CheckpointMetadata(model="abc", workers=2, strategy="fsdp2", verl="0.9.1", base="tiny", seed=0, lora_rank=8)


def test_a_checkpoint_of_the_same_run_is_taken(tmp_path: Path) -> None:
    write_metadata(tmp_path, MADE_BY)
    check_metadata(tmp_path, MADE_BY)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"workers": 1}, ["2 workers", "fsdp2", "has 1"]),
        ({"strategy": "megatron"}, ["fsdp2", "megatron"]),
        ({"model": "def"}, ["actor_rollout_ref.model.path"]),
        ({"lora_rank": 0}, ["actor_rollout_ref.model.lora_rank=8", "has 0"]),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], values: list[str]) -> None:
    write_metadata(tmp_path, MADE_BY)
    same: dict[str, Any] = {"workers": 2, "strategy": "fsdp2", "model": "abc", "lora_rank": 8}
    check_resumable(tmp_path, **same)
    check_resumable(tmp_path, **same | {"model": None})
    with pytest.raises(CheckpointError) as before_start:
        check_resumable(tmp_path, **same | changes)
    with pytest.raises(CheckpointError) as on_load:
        check_metadata(tmp_path, replace(MADE_BY, **changes))
    for raised in (before_start, on_load):
        check_values(str(raised.value), *values)


def test_a_checkpoint_of_another_backend_is_refused(tmp_path: Path) -> None:
    with expect_error(CheckpointError, "checkpoint-of-other-backend", "verl"):
        check_metadata(tmp_path, MADE_BY)


def test_models_with_other_weights_have_other_digests(tmp_path: Path) -> None:
    vocabulary = len(tiny.build_tokenizer())
    for name, seed in (("a", 0), ("again", 0), ("b", 1)):
        tiny.build_model(vocabulary, seed).save_pretrained(tmp_path / name)
    assert model_digest(tmp_path / "a") == model_digest(tmp_path / "again")
    assert model_digest(tmp_path / "a") != model_digest(tmp_path / "b")


def train_model(seed: int, steps: int) -> tuple[torch.nn.Module, torch.optim.AdamW]:
    model = tiny.build_model(len(tiny.build_tokenizer()), seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(input_ids=torch.arange(5, 15)[None]).logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_shard_restores_weights_and_optimizer_exactly(tmp_path: Path) -> None:
    model, optimizer = train_model(seed=0, steps=3)
    save_shard(tmp_path / "shard", model, optimizer, {"cpu": torch.get_rng_state()})
    other, other_optimizer = train_model(seed=1, steps=1)
    random = load_shard(tmp_path / "shard", other, other_optimizer)
    assert torch.equal(random["cpu"], torch.get_rng_state())
    step(model, optimizer)
    step(other, other_optimizer)
    for (name, weight), (_, of_other) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(weight, of_other), name


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    model, optimizer = train_model(seed=0, steps=1)
    save_shard(tmp_path / "shard", model, optimizer, {})
    smaller = torch.nn.Linear(2, 2)
    with expect_error(CheckpointError, "checkpoint-of-other-model", tmp_path / "shard"):
        load_shard(tmp_path / "shard", smaller, torch.optim.AdamW(smaller.parameters()))


def test_weights_that_are_not_trained_are_not_kept(tmp_path: Path) -> None:
    model, optimizer = train_model(seed=0, steps=0)
    for weight in model.parameters():
        weight.requires_grad_(False)
    save_shard(tmp_path / "shard", model, optimizer, {})
    assert (tmp_path / "shard").stat().st_size < 1000


@pytest.mark.parametrize(("weights", "moved"), [("model.safetensors", True), ("config.json", False)])
def test_only_models_with_weights_move_to_model_directory(tmp_path: Path, weights: str, moved: bool) -> None:
    saved = tmp_path / "shards" / "huggingface"
    saved.mkdir(parents=True)
    (saved / weights).touch()
    move_model(tmp_path)
    assert (tmp_path / "model").is_dir() is moved
