"""Which models keep rows apart that lie side by side, asked of transformers' own implementations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from expecting import expect_error
from omegaconf import OmegaConf

from rllm_core.errors import ConfigError
from rllm_verl.attention import check_packing

from .conftest import SMALL

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("sdpa", {}),
    "Mistral": ("sdpa", {"sliding_window": 4, "head_dim": 8}),
    "Qwen3": ("sdpa", {"head_dim": 8}),
    "Qwen3Moe": ("eager", {"head_dim": 8}),
    "Gemma3Text": ("sdpa", {"head_dim": 8, "sliding_window": 4}),
    "Falcon": ("sdpa", {}),
    "FalconH1": ("sdpa", {}),
    "GptOss": ("eager", {"head_dim": 8, "num_local_experts": 4, "sliding_window": 4}),
    "Jamba": ("sdpa", {}),
    "Lfm2": ("sdpa", {"full_attn_idxs": [1]}),
    "Llama4Text": ("sdpa", {"attention_chunk_size": 8, "intermediate_size_mlp": 32, "head_dim": 8}),
    "Qwen3_5Text": ("sdpa", {}),
}
"""By name: an attention that the model can have, and further settings."""


# Without its kernels FalconH1 takes one to two minutes.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name == "FalconH1")) for name in MODELS]
)
def test_only_models_that_mix_packed_rows_fail(name: str) -> None:
    how, settings = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**SMALL | settings)
    mixed_up = _packing_difference(config, how) > 1e-4
    native = _native(how, packed=True)
    layer_types = list(getattr(config, "layer_types", None) or ())
    if mixed_up:
        with expect_error(ConfigError, "unsupported-attention", "use_remove_padding=false"):
            check_packing(config.model_type, layer_types, native)
    else:
        check_packing(config.model_type, layer_types, native)
    check_packing(config.model_type, layer_types, _native(how, packed=False))


def test_models_with_row_boundaries_from_verl_are_packed() -> None:
    check_packing("qwen3_5", ["linear_attention", "full_attention"], _native("sdpa", packed=True))
    check_packing("gpt_oss", ["sliding_attention"], _native("flash_attention_3", packed=True))


def _native(how: str, *, packed: bool) -> Any:
    model = {"use_remove_padding": packed, "override_config": {"attn_implementation": how}}
    return OmegaConf.create({"actor_rollout_ref": {"model": model, "actor": {"strategy": "fsdp2"}}})


@torch.no_grad()
def _packing_difference(config: Any, how: str) -> float:
    """Largest difference of a log-prob between two rows side by side, as verl packs them, and each row separately."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=how).float().eval()
    for parameter in model.parameters():
        parameter.normal_(0, 0.15)
    rows = [torch.randint(3, 64, (1, length)) for length in (11, 9)]
    positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
    separate = torch.cat([model(input_ids=row, use_cache=False).logits[0] for row in rows])
    packed = model(input_ids=torch.cat(rows, 1), position_ids=positions, attention_mask=None, use_cache=False).logits[0]
    return float((separate.log_softmax(-1) - packed.log_softmax(-1)).abs().max())
