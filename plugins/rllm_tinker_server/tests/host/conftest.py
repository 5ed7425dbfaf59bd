"""Small base models made in code, hosts on them, and random examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from local_models import build_tiny, sharpen, tiny_tokenizer

from rllm_local.model import LoadedModel
from rllm_tinker_server.host import Host
from rllm_tinker_server.losses import LOSSES
from rllm_tinker_server.messages import AdamStep, Example, ForwardBackward, LoraSpec

torch.set_num_threads(1)

STEP = AdamStep(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8)


def build_tied_model() -> Any:
    """The tiny Llama: its output layer is its input embedding."""
    return build_tiny(0)


def build_untied_model() -> Any:
    """A Qwen3 with its own output layer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return sharpen(Qwen3ForCausalLM(config))


def make_host(model: Any = None, *, name: str = "tiny", **settings: Any) -> Host:
    """A host with its own model. The default model has tied embeddings."""
    model = build_tied_model() if model is None else model
    context = int(model.config.max_position_embeddings)
    loaded = LoadedModel(model=model, tokenizer=tiny_tokenizer(), stop_ids=frozenset({2}), max_context=context)
    return Host(loaded, name=name, tokenizer=name, **settings)


def make_trained_host(**settings: Any) -> Host:
    """With one LoRA model, ``m``."""
    made = make_host(**settings)
    made.create("m", LoraSpec(rank=8, seed=1))
    return made


@pytest.fixture
def host() -> Host:
    return make_trained_host()


@pytest.fixture(scope="module")
def shared_host() -> Host:
    """One for tests of requests that are refused. They check that nothing has changed."""
    return make_trained_host()


def make_examples(
    lengths: tuple[int, ...], loss: str = "ppo", *, seed: int = 0, many: int | None = None
) -> tuple[Example, ...]:
    """Random examples of these lengths, with all inputs that any policy loss reads, or the weights of cross_entropy."""
    generator = np.random.default_rng(seed)
    examples = []
    for length in lengths:
        shape = (length,) if many is None else (length, many)
        columns = {
            "weights": generator.normal(0, 1, shape),
            "logprobs": generator.normal(-4.4, 0.4, shape),
            "advantages": generator.normal(0, 1, shape),
            "sequence_ratio_mask": np.arange(length) >= length // 2,
            "sampled": np.arange(length) >= length // 2,
        }
        names = sorted(LOSSES[loss].inputs)
        examples.append(
            Example(
                tokens=generator.integers(0, 70, length),
                targets=generator.integers(0, 70, shape),
                inputs={name: columns[name].astype(np.float32) for name in names},
            )
        )
    return tuple(examples)


def make_request(
    loss: str = "ppo", lengths: tuple[int, ...] = (9, 4, 17), *, forward_only: bool = False, **options: Any
) -> ForwardBackward:
    config = options.pop("config", {})
    examples = make_examples(lengths, loss, **options)
    return ForwardBackward(loss=loss, config=config, examples=examples, forward_only=forward_only)


def train(host: Host, model_id: str, request: ForwardBackward, count: int = 1, step: AdamStep = STEP) -> None:
    """Make some steps, each on the request given."""
    for _ in range(count):
        host.forward_backward(model_id, request)
        host.optim_step(model_id, step)


def weights_of(host: Host, model_id: str) -> torch.Tensor:
    """All weights of an adapter as one vector."""
    factors = host.weights(model_id).factors.values()
    return torch.cat([tensor.flatten() for each in factors for tensor in (each.down, each.up)])
