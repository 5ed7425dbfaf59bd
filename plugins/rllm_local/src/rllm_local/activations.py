"""Memory that a forward pass stores for the backward pass, measured with fake tensors (shapes without values)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from rllm_local.settings import TrainedModelSection

WIDTH = 256
"""Number of tokens in the measured pass. The stored memory grows linearly with it."""


def kept_per_token(config: Any, settings: TrainedModelSection) -> tuple[float, float]:
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
    output = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if settings.adapts(name) and isinstance(module, nn.Linear) and module is not output:
            model.set_submodule(name, _Adapted(module, settings.lora_rank))


class _Adapted(nn.Module):
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
