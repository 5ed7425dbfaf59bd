"""Gradient checkpointing changes memory and time, and no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from expecting import expect_error
from local_models import build_tiny, make_critic, make_plan, random_batch

from rllm_core.errors import ConfigError
from rllm_local.exact_attention import use_exact_attention
from rllm_local.model import load_model_to_train
from rllm_local.settings import TrainedModelSection, TrainingSection
from rllm_local.update import Updater, checkpoint_layers

ROWS = [(2 + row, 1 + row % 4) for row in range(9)]


def test_fewer_activations_are_kept() -> None:
    model, ids = build_tiny(0), torch.arange(6, 70)[None]

    def count_saved_bytes() -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        assert hidden.requires_grad
        return sum(sizes.values())

    everything = count_saved_bytes()
    with checkpoint_layers(model):
        assert count_saved_bytes() < everything / 2


def test_afterwards_the_model_samples_with_its_cache() -> None:
    model, ids = build_tiny(0), torch.arange(6, 20)[None]
    with checkpoint_layers(model):
        assert not model.training
        assert not model.model.training
    assert not any(module.training for module in model.modules())
    cache = model(input_ids=ids, use_cache=True).past_key_values
    assert cache.get_seq_length() == 14


def test_model_without_checkpointing_layers_is_rejected() -> None:
    with (
        expect_error(ConfigError, "no-gradient-checkpointing", "training.gradient_checkpointing", "Linear"),
        checkpoint_layers(torch.nn.Linear(2, 2)),
    ):
        pass


def _opt() -> Any:
    """OPT's layers draw dropout by themselves when they train."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 80, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = OPTForCausalLM(OPTConfig(**sizes, dropout=0.5)).eval()
    use_exact_attention(model)
    return model


@pytest.mark.parametrize("which", ["tiny", "adapter", "critic", "dropout"])
def test_gradients_are_those_of_kept_activations(which: str) -> None:
    """The backward pass of a critic goes through the same graph before the policy's."""
    batch = random_batch(ROWS)
    if which == "critic":
        batch = batch.with_columns(returns=np.sin(batch.tokens), values=np.cos(batch.tokens))
    found = []
    for recompute in (False, True):
        section = TrainingSection(learning_rate=1e-3, gradient_checkpointing=recompute)
        masters, model = None, _opt() if which == "dropout" else build_tiny(0)
        if which == "adapter":
            trained = TrainedModelSection(device="cpu", dtype="bfloat16", lora_rank=4)
            loaded, masters = load_model_to_train(trained, 0)
            model = loaded.model
        updater = Updater(
            model,
            section,
            total_steps=5,
            temperature=0.7,
            max_response_length=50,
            masters=masters,
            critic=make_critic(model) if which == "critic" else None,
        )
        updater.update(random_batch(ROWS, seed=1), make_plan())
        metrics = updater.update(batch, make_plan(global_step=1)).metrics
        found.append(([master.grad.clone() for master in updater.masters if master.grad is not None], metrics))
    (kept, expected), (recomputed, metrics) = found
    assert len(kept) == len(recomputed) > 0
    assert all(torch.equal(*pair) for pair in zip(kept, recomputed, strict=True))
    assert metrics == expected
