"""Checks for verl features that need flash attention, and for models that cannot use packed rows."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from rllm_core.errors import ConfigError
from rllm_verl.keys import MODEL

HOW = f"{MODEL}.override_config.attn_implementation"
FLASH = "flash_attention_2"
FSDP = ("fsdp", "fsdp2")
ULYSSES = "ulysses_sequence_parallel_size"
PLAIN_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Layer types that keep packed rows separate. They use the mask that transformers builds from the positions."""
PACKED_BY_VERL = frozenset({"qwen3_5", "qwen3_5_moe"})
"""Models with other layer types, to which verl passes the row boundaries."""
NEVER_PACKED = frozenset({"bloom", "falcon", "falcon_h1", "falcon_mamba", "gpt_oss", "mamba", "mamba2", "mpt", "rwkv"})
"""Models in which packed rows attend to each other although their `layer_types` do not show it. For gpt_oss this
happens only without flash attention."""


def check_attention(native: dict[str, Any]) -> None:
    """Raise ConfigError if verl needs flash attention but it is not available."""
    model = native["actor_rollout_ref"]["model"]
    how = attention(model)
    if how == FLASH and find_spec("flash_attn") is None:
        raise ConfigError(
            "missing-package",
            f"verl uses {FLASH} for attention, but flash-attn is not installed.",
            f"Install flash-attn (see docs/backends/verl.md), or set {HOW}=sdpa.",
        )
    for key, size in _sequence_parallel(native):
        if not is_flash(how):
            raise ConfigError(
                "unsupported-attention",
                f"`{key}` is {size}, but `{HOW}` is {how}. verl exchanges heads between GPUs only in flash attention, "
                "so each GPU would see only its own part of a sequence.",
                f"Set {HOW}={FLASH}, or {key}=1.",
            )
        if not model["use_remove_padding"]:
            raise ConfigError(
                "unsupported-attention",
                f"`{key}` is {size}, but `{MODEL}.use_remove_padding` is false, and verl splits only packed rows.",
                f"Set {MODEL}.use_remove_padding=true, or set {key}=1.",
            )


def attention(model: dict[str, Any]) -> str:
    """Return the model's attention implementation in verl. The default is flash attention."""
    return str(model["override_config"].get("attn_implementation", FLASH))


def is_flash(how: str) -> bool:
    """Return True if `how` is flash attention of any version."""
    return how.startswith("flash_attention")


def sequence_parallel_size(actor: Any) -> int:
    """Return the number of GPUs that share a sequence. verl reads both keys. The actor's key wins if it is above 1."""
    own = int(actor.get(ULYSSES, 1))
    return own if own > 1 else int((actor.get("fsdp_config") or {}).get(ULYSSES, 1))


def check_packing(model_type: str, layer_types: list[str], native: Any) -> None:
    """Raise ConfigError if rows of a micro-batch would be packed but the model cannot keep them separate.

    Args:
        model_type: `model_type` in the model's configuration.
        layer_types: `layer_types` in the model's configuration. Empty if it has none.
        native: verl's whole configuration.
    """
    role = native.actor_rollout_ref
    if not role.model.use_remove_padding or role.actor.strategy not in FSDP or model_type in PACKED_BY_VERL:
        return
    strange = sorted(set(layer_types) - PLAIN_LAYERS)
    if model_type == "gpt_oss" and is_flash(attention(role.model)):
        return
    if strange or model_type in NEVER_PACKED:
        why = f"layers of type {', '.join(strange)}" if strange else f"a model of type {model_type}"
        raise ConfigError(
            "unsupported-attention",
            f"`{MODEL}.use_remove_padding` is true, but in {why} rows that are packed together attend to each other.",
            f"Set {MODEL}.use_remove_padding=false.",
        )


def _sequence_parallel(native: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the keys that split sequences over GPUs, with their values, if a value is above 1."""
    for name in ("actor", "ref"):
        role = native["actor_rollout_ref"][name]
        for key, section in ((name, role), (f"{name}.fsdp_config", role.get("fsdp_config") or {})):
            if int(section.get(ULYSSES) or 1) > 1:
                yield f"actor_rollout_ref.{key}.{ULYSSES}", int(section[ULYSSES])
