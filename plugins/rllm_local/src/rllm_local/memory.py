"""A run's memory, estimated only from the model's config.json and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rllm_local.activations import kept_per_token
from rllm_local.forward import cache_bytes_per_token
from rllm_local.settings import LocalConfig
from rllm_local.vocabulary import CHUNK

GIB = 1 << 30
LOGITS_BYTES = {torch.float32: 16, torch.bfloat16: 12}
"""Peak bytes of log-probs and their gradient, per sampled token and vocabulary entry, by the model's type. Measured in
tests/test_memory.py."""
CHUNK_BYTES = 16
"""Peak bytes per entry of a chunk, if the logits of many tokens are computed in chunks."""
CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Keys in a model's config for changes to logits after the output layer. Such logits are not chunked."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """A run's use of the model that affects memory."""

    micro_batch_tokens: int
    """Padded tokens per forward and backward pass."""
    sampled_tokens: int
    """Maximum number of sampled tokens among them."""
    cached_tokens: int
    """Maximum number of tokens with cached keys and values."""
    reference: bool
    critic: bool
    widest_sequence: int = 0
    """Positions of the longest sequence with several rows. 0 if each row is a sequence."""
    copies: int = 0
    """Number of copies of the trained weights for sampling."""
    apart: bool = False
    """True if the copies are in a different process than training."""


def parts_of_memory(model_config: Any, settings: LocalConfig, load: Load) -> Mapping[str, int]:
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
    trained = _adapter_size(shapes, settings) if rank else count
    per_layer, outside = kept_per_token(model_config, settings.model)
    n_layer = model_config.num_hidden_layers
    logits = _logits(model_config, dtype, load.sampled_tokens)
    in_chunks = logits < LOGITS_BYTES[dtype] * load.sampled_tokens * model_config.vocab_size
    activations = load.micro_batch_tokens * (n_layer * per_layer + outside)
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
        # For rows in one sequence: a bool mask of one byte per entry, and the mask that attention adds to its scores.
        "attention masks": load.micro_batch_tokens * load.widest_sequence * (1 + size),
        # With chunks it is summed in addition to the gradient of earlier micro-batches.
        "gradient of the output layer": 4 * model_config.vocab_size * model_config.hidden_size
        if in_chunks and not rank
        else 0,
        "cached keys and values": min(
            load.cached_tokens * cache_bytes_per_token(shapes), int(settings.local.kv_cache_gib * GIB)
        ),
    }
    return {name: size for name, size in parts.items() if size}


def _logits(model_config: Any, dtype: torch.dtype, sampled_tokens: int) -> int:
    entries = sampled_tokens * model_config.vocab_size
    changed = any(getattr(model_config, key, None) is not None for key in CHANGES_LOGITS)
    whole = LOGITS_BYTES[dtype] * entries
    return whole if entries <= CHUNK or changed else CHUNK_BYTES * CHUNK


def _shapes(model_config: Any) -> Any:
    """Return the model with tensors that have shapes but no values."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)


def _adapter_size(model: Any, settings: LocalConfig) -> int:
    """Return the number of weights in an adapter."""
    output = model.get_output_embeddings()
    adapted = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output and settings.model.adapts(name)
    ]
    return settings.model.lora_rank * sum(module.in_features + module.out_features for module in adapted)
