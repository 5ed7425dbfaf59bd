"""The same tests on a CPU, where models are tiny (`make test`), and on a CUDA device (`make test-gpu`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from local_models import random_batch

from rllm_core.data.batch import TokenBatch
from rllm_local.adapter_files import AdapterBase
from rllm_local.exact_attention import use_torch_attention
from rllm_local.lora import Adapter
from rllm_local.master_weights import MasterWeights, cast_weights
from rllm_local.settings import TrainedModelSection, TrainingSection
from rllm_local.update import Updater

# torch has one device that is not built in, so the simulated one is not added to a GPU's.
if not torch.cuda.is_available():
    from pretend_device import register

    register()

SMALL = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
LARGE = {"vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048}


@pytest.fixture(params=["cpu", "pretend", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param != "cpu" and (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip(f"the device {request.param} is not available")
    return torch.device(request.param)


@dataclass
class TrainingModel:
    """A model with what trains it."""

    model: Any
    masters: MasterWeights
    updater: Updater

    def gradients(self) -> torch.Tensor:
        """Return the gradient of the last update before clipping, as one vector in main memory."""
        return torch.cat([master.grad.flatten().cpu() for master in self.masters if master.grad is not None])


@pytest.fixture
def sizes(device: torch.device) -> dict[str, int]:
    """Return the sizes of the model. They are larger on a CUDA device, so that it is busy."""
    return HEADS | (LARGE if device.type == "cuda" else SMALL)


@pytest.fixture
def make_training_model(sizes: dict[str, int]) -> Callable[..., TrainingModel]:
    """A Qwen3 of random weights, the same on every device."""

    def make(device: torch.device, dtype: str = "float32", rank: int = 0, **training: Any) -> TrainingModel:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, bos_token_id=None, pad_token_id=0, eos_token_id=2)).eval()
        use_torch_attention(model)
        if rank:
            cast_weights(model, getattr(torch, dtype))
            model.to(device)
            adapter = Adapter(model, TrainedModelSection(lora_rank=rank), AdapterBase("random"), 0)
            with torch.no_grad():
                for number, layer in enumerate(adapter.layers.values()):
                    generator = torch.Generator().manual_seed(number)
                    up = layer.lora_B["default"].weight
                    up.copy_(0.01 * torch.randn(up.shape, generator=generator))
            masters = MasterWeights(model)
        else:
            masters = MasterWeights.from_float32(model.to(device), getattr(torch, dtype))
        section = TrainingSection(max_grad_norm=1e9, **training)
        updater = Updater(model, section, total_steps=9, temperature=1.0, max_response_length=900, masters=masters)
        return TrainingModel(model, masters, updater)

    return make


@pytest.fixture
def batch(sizes: dict[str, int]) -> TokenBatch:
    return random_batch([(8 + 5 * row, 40 + 7 * row) for row in range(8)], vocabulary=sizes["vocab_size"])
