"""Checkpoints of the backend: exact, readable by transformers, and refused where they do not belong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecting import expect_error
from local_models import build_tiny, make_critic, make_plan, make_updater, random_batch, weights_of

from rllm_core.errors import CheckpointError
from rllm_local.trainer import load_state, save_state
from rllm_local.update import Updater


@pytest.fixture(autouse=True)
def quiet() -> None:
    """As in a run, where a model is loaded before anything is saved."""
    from rllm_backend_kit.model_files import silence_transformers

    silence_transformers()


@pytest.fixture
def train() -> Callable[[Updater, range], list[dict[str, float]]]:
    """Makes the updates of some steps; each step has its own batch."""

    def run(updater: Updater, steps: range) -> list[dict[str, float]]:
        lengths = [(2 + row, 1 + row % 4) for row in range(9)]
        return [
            updater.update(random_batch(lengths, seed=step), make_plan(global_step=step, seed=step)).metrics
            for step in steps
        ]

    return run


SCHEDULE = {"lr_schedule": "cosine", "num_minibatches": 2, "num_epochs": 2, "weight_decay": 0.01, "total_steps": 6}


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_run_has_weights_of_an_uninterrupted_run(
    dtype: torch.dtype, tmp_path: Path, tokenizer: Any, train: Callable[..., list[dict[str, float]]]
) -> None:
    straight = build_tiny(0).to(dtype)
    straight_updater = make_updater(straight, **SCHEDULE)
    expected = train(straight_updater, range(6))

    stopped = build_tiny(0).to(dtype)
    updater = make_updater(stopped, **SCHEDULE)
    train(updater, range(3))
    save_state(tmp_path, updater.masters, tokenizer, updater.optimizer)
    train(updater, range(3, 4))  # lost with the process

    resumed = build_tiny(1).to(dtype)
    updater = make_updater(resumed, **SCHEDULE)
    load_state(tmp_path, updater.masters, updater.optimizer)
    assert train(updater, range(3, 6)) == expected[3:]
    assert torch.equal(weights_of(resumed), weights_of(straight))
    for master, other in zip(updater.masters, straight_updater.masters, strict=True):
        assert torch.equal(master, other)


def test_saved_model_is_float32_and_records_its_dtype(
    tmp_path: Path, tokenizer: Any, train: Callable[..., list[dict[str, float]]]
) -> None:
    """Whoever loads it in float32 has every bit of the masters; by default transformers loads it as it computes."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = build_tiny(0).to(torch.bfloat16)
    updater = make_updater(model)
    train(updater, range(2))
    save_state(tmp_path, updater.masters, tokenizer, updater.optimizer)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert all(torch.equal(*pair) for pair in zip(exact.parameters(), updater.masters, strict=True))
    as_computed = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert as_computed.dtype == torch.bfloat16
    assert all(torch.equal(*pair) for pair in zip(as_computed.parameters(), model.parameters(), strict=True))
    words, message = AutoTokenizer.from_pretrained(tmp_path / "model"), [{"role": "user", "content": "guess"}]
    options = {"tokenize": False, "add_generation_prompt": True}
    assert words.apply_chat_template(message, **options) == tokenizer.apply_chat_template(message, **options)
    assert exact.lm_head.weight is exact.model.embed_tokens.weight, "tied, as in the model that was saved"


def test_loading_restores_state_after_further_training(
    tmp_path: Path, tokenizer: Any, train: Callable[..., list[dict[str, float]]]
) -> None:
    """From the state before the first update, where the optimizer has nothing to save yet."""
    model = build_tiny(0)
    updater = make_updater(model, **SCHEDULE)
    save_state(tmp_path, updater.masters, tokenizer, updater.optimizer)
    expected = train(updater, range(3))
    weights = weights_of(model)
    load_state(tmp_path, updater.masters, updater.optimizer)
    assert train(updater, range(3)) == expected
    assert torch.equal(weights_of(model), weights)


def test_missing_critic_is_rejected_and_unneeded_one_ignored(tmp_path: Path, tokenizer: Any) -> None:
    model = build_tiny(0)
    critic = make_critic(model)
    without, both = tmp_path / "without", tmp_path / "both"
    without.mkdir()
    both.mkdir()
    updater = make_updater(model)
    save_state(without, updater.masters, tokenizer, updater.optimizer)
    updater = make_updater(model, critic=critic)
    save_state(both, updater.masters, tokenizer, updater.optimizer, critic)
    other = build_tiny(1)
    unlike = make_updater(other)
    before = weights_of(other)
    with pytest.raises(CheckpointError, match="contains no critic"):
        load_state(without, unlike.masters, unlike.optimizer, critic)
    assert torch.equal(weights_of(other), before)
    load_state(both, unlike.masters, unlike.optimizer)
    assert torch.equal(weights_of(other), weights_of(model))


def test_nothing_is_pickled(tmp_path: Path, tokenizer: Any, train: Callable[..., list[dict[str, float]]]) -> None:
    model = build_tiny(0)
    updater = make_updater(model)
    train(updater, range(1))
    save_state(tmp_path, updater.masters, tokenizer, updater.optimizer)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jinja", ".safetensors"}


@pytest.mark.parametrize("other", ["grouped_model", "qwen_model"])
def test_checkpoint_of_different_model_is_rejected_without_changes(
    other: str, request: pytest.FixtureRequest, tmp_path: Path, tokenizer: Any
) -> None:
    saved = request.getfixturevalue(other)
    updater = make_updater(saved)
    save_state(tmp_path, updater.masters, tokenizer, updater.optimizer)
    model = build_tiny(0)
    updater = make_updater(model)
    before = weights_of(model)
    with expect_error(CheckpointError, "checkpoint-of-other-model", tmp_path, "model.name"):
        load_state(tmp_path, updater.masters, updater.optimizer)
    assert torch.equal(weights_of(model), before)
