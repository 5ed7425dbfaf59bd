"""A run's memory, estimated only from the model's config.json and the settings.

The memory that a forward pass stores for the backward pass is measured with fake tensors (shapes without values).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rllm_local.forward import cache_bytes_per_token
from rllm_local.settings import LocalConfig, TrainedModelSection
from rllm_local.vocabulary import CHUNK

GIB = 1 << 30
LOGITS_BYTES = {torch.float32: 12, torch.bfloat16: 10}
"""Peak bytes of log-probs and their gradient, per sampled token and vocabulary entry, by the model's type. Measured in
tests/test_memory.py."""
CHUNK_BYTES = {torch.float32: 14, torch.bfloat16: 12}
"""Peak bytes per entry of a chunk, if the logits of many tokens are computed in chunks."""
WIDTH = 256
"""Number of tokens in the pass that measures the stored memory. The memory grows linearly with it."""
CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Keys in a model's config for changes to logits after the output layer. Such logits are not chunked."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """A run's use of the model that affects memory."""

    micro_batch_tokens: int
    """Tokens per forward and backward pass."""
    sampled_tokens: int
    """Maximum number of sampled tokens among them."""
    cached_tokens: int
    """Maximum number of tokens with cached keys and values."""
    reference: bool
    critic: bool
    longest_row: int = 0
    """Maximum number of tokens in a row of a micro-batch. 0 for no estimate of the masks."""
    copies: int = 0
    """Number of copies of the trained weights for sampling."""
    apart: bool = False
    """True if the copies are in a different process than training."""
    exact: bool = True
    """True if attention is exact. Other attention is recomputed for the gradient, so its results are not stored."""


def memory_parts(model_config: Any, settings: LocalConfig, load: Load) -> Mapping[str, int]:
    """Return the bytes by purpose. All of them are in use at the same time at the peak of an update.

    Args:
        model_config: `transformers.PretrainedConfig` of a causal language model.
        settings: the backend's settings.
        load: the run's use of the model.
    """
    dtype, size = getattr(torch, settings.model.dtype), 2 if settings.model.dtype == "bfloat16" else 4
    shapes = _shapes(model_config)
    count = sum(parameter.numel() for parameter in shapes.parameters())
    rank = settings.model.lora_rank
    trained = _adapter_size(shapes, settings.model) if rank else count
    per_layer, outside = saved_bytes_per_token(model_config, settings.model)
    n_layer = model_config.num_hidden_layers
    logits = _logits(model_config, dtype, load.sampled_tokens)
    in_chunks = logits < LOGITS_BYTES[dtype] * load.sampled_tokens * model_config.vocab_size
    of_attention = 0 if load.exact else size * model_config.num_attention_heads * _head_size(model_config)
    activations = load.micro_batch_tokens * (n_layer * (per_layer - of_attention) + outside)
    if settings.training.gradient_checkpointing:
        activations = load.micro_batch_tokens * (n_layer * model_config.hidden_size * size + outside)
        # The logits are freed before the first layer is recomputed.
        activations += max(load.micro_batch_tokens * per_layer - logits, 0)
    shapes.to(dtype)
    parts = {
        "weights": count * size,
        "float32 weights that are trained": trained * 4 if rank or size == 2 else 0,
        # Copies in the same process share the untrained weights.
        "weights that sample": load.copies * trained * size + (count * size if load.apart and rank else 0),
        "weights between the processes": trained * size if load.apart else 0,
        "reference model": count * size if load.reference and not rank else 0,
        "AdamW's moments": 8 * trained,
        "gradients": 4 * trained,
        "gradients of the critic": 4 * trained if load.critic else 0,
        "activations": int(activations),
        "logits": logits,
        # A bool mask of one byte per entry, and the mask that attention adds to its scores.
        "attention masks": load.micro_batch_tokens * load.longest_row * (1 + size),
        # With chunks it is summed in addition to the gradient of earlier micro-batches.
        "gradient of the output layer": 4 * model_config.vocab_size * model_config.hidden_size
        if in_chunks and not rank
        else 0,
        "cached keys and values": min(
            load.cached_tokens * cache_bytes_per_token(shapes), int(settings.local.kv_cache_gib * GIB)
        ),
    }
    return {name: size for name, size in parts.items() if size}


def _head_size(model_config: Any) -> int:
    size = getattr(model_config, "head_dim", None) or model_config.hidden_size // model_config.num_attention_heads
    return int(size)


def _logits(model_config: Any, dtype: torch.dtype, sampled_tokens: int) -> int:
    entries = sampled_tokens * model_config.vocab_size
    changed = any(getattr(model_config, key, None) is not None for key in CHANGES_LOGITS)
    whole = LOGITS_BYTES[dtype] * entries
    return whole if entries <= CHUNK or changed else CHUNK_BYTES[dtype] * CHUNK


def _shapes(model_config: Any) -> Any:
    """Return the model with tensors that have shapes but no values."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)


def _adapter_size(model: Any, settings: TrainedModelSection) -> int:
    """Return the number of weights in an adapter."""
    layers = _adapted_layers(model, settings)
    return settings.lora_rank * sum(layer.in_features + layer.out_features for _, layer in layers)


def saved_bytes_per_token(config: Any, settings: TrainedModelSection) -> tuple[float, float]:
    """Return the bytes per token that are stored in each layer, and outside the layers (without logits).

    Args:
        config: `transformers.PretrainedConfig` of a causal language model.
        settings: the model's type and adapter.
    """
    one, two = (_measure_saved_bytes(config, settings, n_layer) / WIDTH for n_layer in (1, 2))
    return two - one, one - (two - one)


def _measure_saved_bytes(config: Any, settings: TrainedModelSection, n_layer: int) -> int:
    from transformers import AutoModelForCausalLM

    small = copy.deepcopy(config)
    small.num_hidden_layers = n_layer
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:n_layer]
    kept: dict[Any, int] = {}
    alive: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        alive.append(tensor)  # so that its address is not reused by a different storage
        return tensor

    with FakeTensorMode():
        model = AutoModelForCausalLM.from_config(small, dtype=getattr(torch, settings.dtype)).eval()
        if settings.lora_rank:
            _adapt(model, settings)
        own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        ids = torch.zeros((1, WIDTH), dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model.get_decoder()(input_ids=ids, use_cache=False)
    return sum(size for storage, size in kept.items() if storage not in own)


def _adapt(model: Any, settings: TrainedModelSection) -> None:
    model.requires_grad_(False)
    for name, module in list(_adapted_layers(model, settings)):
        model.set_submodule(name, _LoraLinear(module, settings.lora_rank))


def _adapted_layers(model: Any, settings: TrainedModelSection) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers that get an adapter, with their names."""
    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        if settings.adapts(name) and isinstance(module, nn.Linear) and module is not output:
            yield name, module


class _LoraLinear(nn.Module):
    """A layer with the same computation as peft's LoRA layer, which does not accept fake tensors."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result = self.base(inputs)
        adapted: torch.Tensor = (result + self.up(self.down(inputs.float())) * 2.0).to(result.dtype)
        return adapted
