"""Each type of causal model is refused, or packed rows and the engine have the log-probs of the plain model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from local_models import assert_as_without_cache, random_batch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from rllm_backend_kit.model_files import longest_context, longrope_limit
from rllm_core.contracts.engine import SamplingParams
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import ConfigError
from rllm_local.engine import LocalEngine
from rllm_local.logprobs import token_outputs
from rllm_local.model import check_family, check_max_length
from rllm_local.prefix_trees import micro_batches

CORE = "llama qwen3 qwen3_moe mistral gemma2 gemma3_text olmo3 deepseek_v2 deepseek_v3 gpt2 opt phi3 cohere2"
OTHERS = (
    "afmoe apertus arcee biogpt bitnet cohere cohere2_moe cwm dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo "
    "gemma gemma4_text glm glm4 glm4_moe glm4_moe_lite gpt_bigcode gpt_neox granite granitemoe granitemoeshared helium "
    "hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 jetmoe laguna lfm2 longcat_flash mellum "
    "minimax_m2 ministral ministral3 mixtral modernbert-decoder nanochat olmo olmo2 olmoe persimmon phi phimoe qwen2 "
    "qwen2_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu aria_text"
)
REFUSED = {
    "nemotron": "cannot compute attention over rows with a common prefix",
    "diffllama": "cannot compute attention over rows with a common prefix",
    "falcon": "cannot compute attention over rows with a common prefix",
    "doge": "cannot compute attention over rows with a common prefix",
    "bart": "cannot compute attention over rows with a common prefix",
    "roberta": "cannot compute attention over rows with a common prefix",
    "gpt_oss": "uses the attention 'eager'",
    "bloom": "uses the attention 'eager'",
    "mpt": "uses the attention 'eager'",
    "gptj": "uses the attention 'eager'",
    "mamba": "uses the attention 'eager'",
    "falcon_h1": "has layers with hybrid",
    "jamba": "has layers with mamba",
    "minimax": "has layers with linear_attention",
    "qwen3_next": "has layers with linear_attention",
    "llama4_text": "has layers with chunked_attention",
}
WINDOW = 8
FACTORS = {"short_factor": [1.0 + 0.2 * i for i in range(8)], "long_factor": [2.0 + 0.4 * i for i in range(8)]}
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "longrope": {**FACTORS, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "moe_layer_start_index"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("hidden_size_per_layer_input", "ssm_state_size", "state_size", "rotary_dim"), 8),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 100),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "qk_head_dim": 24,
    "v_head_dim": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": WINDOW,
}
LATENT = {"num_key_value_heads": 4, "head_dim": 8}
OWN_SIZES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "youtu", "longcat_flash", "glm4_moe_lite"), LATENT),
    "helium": LATENT,
    "gemma2": {"layer_types": ["sliding_attention", "full_attention"]},
    "lfm2": {"layer_types": ["full_attention"] * 2},
    "longcat_flash": {**LATENT, "expert_ffn_hidden_size": 16, "ffn_hidden_size": 48},
    "roberta": {"is_decoder": True},
    "falcon": {"head_dim": None, "num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False},
}


def _build(kind: str, **own: Any) -> Any:
    config_class = type(AutoConfig.for_model(kind))
    default = config_class()
    sizes = {key: size for key, size in SIZES.items() if hasattr(default, key)} | OWN_SIZES.get(kind, {}) | own
    if sizes.get("sliding_window") and not default.sliding_window:
        del sizes["sliding_window"]
    config = config_class(**{key: size for key, size in sizes.items() if size is not None})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.12)
            else:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def _kinds() -> list[Any]:
    marked = [pytest.param(kind, marks=pytest.mark.long) for kind in OTHERS.split() if kind in CONFIG_MAPPING]
    return [kind for kind in CORE.split() if kind in CONFIG_MAPPING] + marked


def _assert_rows_as_separate(model: Any, batch: TokenBatch) -> None:
    """Rows share a sequence; each row's log-probs must equal the plain model's log-probs on this row."""
    (part,) = micro_batches(batch, np.arange(batch.n_rows), 10_000, model.device)
    with torch.no_grad():
        ours = token_outputs(model, part, 1.0).logprobs
        plain = []
        for start, end in zip(batch.row_offsets[:-1], batch.row_offsets[1:], strict=True):
            tokens = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
            table = torch.log_softmax(model(input_ids=tokens[None], use_cache=False).logits[0, :-1], dim=-1)
            plain.append(torch.nn.functional.pad(table.gather(1, tokens[1:, None])[:, 0], (1, 0)))
    np.testing.assert_allclose(ours.numpy(), torch.cat(plain).numpy()[part.source], atol=2e-5, rtol=0)


def _assert_sampled_as_separate(model: Any, engine: LocalEngine, check: Callable[..., None], longest: int) -> None:
    """Conversations of different lengths, two of them with one prompt, and one slot that stays free between them."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(6, 70, length).tolist() for length in (longest - 12, 3, 21)]
    prompts.append(prompts[0])
    sampling = [SamplingParams(max_tokens=6 if index == 1 else 12, seed=index) for index in range(4)]

    async def scenario() -> list[Any]:
        calls = zip(prompts, sampling, strict=True)
        return await asyncio.gather(
            *(engine.generate(ids, params, session=f"{index}") for index, (ids, params) in enumerate(calls))
        )

    answers = asyncio.run(asyncio.wait_for(scenario(), 100))
    for prompt, params, answer in zip(prompts, sampling, answers, strict=True):
        check(model, prompt, params, answer)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("kind", _kinds())
def test_family_accepted_computes_each_row_separately(kind: str, make_engine: Any) -> None:
    model = _build(kind)
    check_family(model, kind)
    _assert_rows_as_separate(model, random_batch([(20, 6), (20, 1), (20, 12), (5, 3), (5, 9), (5, 2)], rollouts=3))
    _assert_rows_as_separate(model, random_batch([(20, 6), (5, 3)]))
    _assert_sampled_as_separate(model, make_engine(model, max_context=128), assert_as_without_cache, 60)


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind in CONFIG_MAPPING])
def test_family_refused_says_why(kind: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[kind]) as caught:
        check_family(_build(kind), "a/model")
    assert caught.value.message.startswith("model.name='a/model' (model type ")


@pytest.mark.parametrize("rope", ROPES)
def test_rope_type_computes_each_row_separately(rope: str, make_engine: Any) -> None:
    model = _build("llama", rope_parameters={"rope_type": rope, "rope_theta": 10_000.0, **ROPES[rope]})
    check_family(model, "llama")
    longest = longest_context(model.config, 0)
    assert longest == (64 if rope == "longrope" else 128)
    rows = [(longest - 12, 6), (longest - 12, 12), (5, 3), (5, 9)]
    _assert_rows_as_separate(model, random_batch(rows, rollouts=2))
    _assert_sampled_as_separate(model, make_engine(model, max_context=longest), assert_as_without_cache, longest)


def test_rope_types_of_transformers_are_all_tested() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert set(ROPE_INIT_FUNCTIONS) <= set(ROPES)


def test_longrope_beyond_its_short_factors_is_refused() -> None:
    model = _build("llama", rope_parameters={"rope_type": "longrope", "rope_theta": 10_000.0, **ROPES["longrope"]})
    limit = longrope_limit(model.config)
    check_max_length("a/model", 64, limit)
    with pytest.raises(ConfigError, match="max_length=65") as caught:
        check_max_length("a/model", 65, limit)
    assert caught.value.hint == "Set training.max_length=64 or lower."
