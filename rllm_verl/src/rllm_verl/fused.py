"""Log-probs without the logits of a whole micro-batch.

Without flash-attn, verl computes log-probs from logits row by row, and stores the logits and their log-softmax. verl's
fused kernels (plain torch) compute them for 512 tokens at a time. They only multiply the last hidden states by the
weight of `lm_head`, so they are wrong for models that scale, cap or shift logits.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from rllm_core.contracts.backend import DerivedKey
from rllm_core.notices import warn_once
from rllm_verl.attention import FSDP
from rllm_verl.keys import ACTOR, MODEL

FUSED = f"{MODEL}.use_fused_kernels"
CUDA = "cuda"
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
BYTES = 6
"""Bytes per logit without flash-attn: 2 for the logit in bfloat16, and 4 for its log-softmax in float32 (autocast)."""
OF_A_LARGE_VOCABULARY = 152_000
PLAIN_HEADS = frozenset(
    {
        "apertus",
        "arcee",
        "deepseek_v3",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "gemma",
        "gemma3_text",
        "glm",
        "glm4",
        "glm4_moe",
        "llama",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    }
)
"""Model types for which verl's general fused forward is correct. A test compares each with transformers."""
SPECIFIC_FORWARDS = frozenset({"glm4v", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"})
"""Model types for which verl has a specific fused forward."""


def _without_flash(strategy: str, device: str) -> bool:
    return device == CUDA and strategy in FSDP and find_spec("flash_attn") is None


DERIVED_FUSED_KERNELS = DerivedKey(native=FUSED, of=(f"{ACTOR}.strategy", "trainer.device"), derive=_without_flash)


def warn_of_logits(native: dict[str, Any]) -> None:
    """Warn how verl computes log-probs if flash-attn is missing."""
    role = native["actor_rollout_ref"]
    if not _without_flash(role["actor"]["strategy"], native["trainer"]["device"]):
        return
    if role["model"]["use_fused_kernels"]:
        warn_once(f"flash-attn is not installed: verl's fused kernels compute log-probs ({FUSED}=true).")
    else:
        warn_once(_describe_logits(role, OF_A_LARGE_VOCABULARY))


def resolve_fused_kernels(
    native: Any, *, model_type: str, softcap: float | None, vocabulary: int, needs: frozenset[str]
) -> None:
    """Switch off fused kernels in verl's configuration, with a warning, if they are wrong or lack a needed output.

    Args:
        native: verl's whole configuration (DictConfig), which is changed in place.
        model_type: the type in the model's configuration.
        softcap: the model's cap on logits. None if it has none.
        vocabulary: size of the model's vocabulary.
        needs: the columns that the run needs.
    """
    role = native.actor_rollout_ref
    if not role.model.use_fused_kernels or role.actor.strategy not in FSDP:
        return
    if "sum_pi_squared" in needs:
        why = "they do not compute sum_pi_squared, which the estimator needs"
    elif softcap or model_type not in PLAIN_HEADS | SPECIFIC_FORWARDS:
        why = f"they are not tested with models of type {model_type}"
    else:
        return
    role.model.use_fused_kernels = False
    warn_once(f"`{FUSED}` is off in this run: {why}.")
    if _without_flash(role.actor.strategy, native.trainer.device):
        warn_once(_describe_logits(role, vocabulary))


def _describe_logits(role: Any, vocabulary: int) -> str:
    actor = role["actor"]
    tokens = f"{actor['ppo_max_token_len_per_gpu']} tokens" if actor["use_dynamic_bsz"] else "1000 tokens"
    size = BYTES * vocabulary * (actor["ppo_max_token_len_per_gpu"] if actor["use_dynamic_bsz"] else 1000) / 1e9
    return (
        f"flash-attn is not installed, so verl stores all logits of a micro-batch: about {size:.2g} GB for {tokens} "
        f"and a vocabulary of {vocabulary}. Install flash-attn, or lower {TOKENS}."
    )
