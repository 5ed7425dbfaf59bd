"""What flash attention alone can do in verl, and models that cannot take packed rows."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from rllm_core.errors import ConfigError

MODEL = "actor_rollout_ref.model"
HOW = f"{MODEL}.override_config.attn_implementation"
FLASH = "flash_attention_2"
FSDP = ("fsdp", "fsdp2")
ULYSSES = "ulysses_sequence_parallel_size"
PLAIN_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Layers that keep packed rows apart: they attend through the mask that transformers makes of the positions."""
PACKED_BY_VERL = frozenset({"qwen3_5", "qwen3_5_moe"})
"""Models with other layers, to which verl tells where rows end."""
NEVER_PACKED = frozenset({"bloom", "falcon", "falcon_h1", "falcon_mamba", "gpt_oss", "mamba", "mamba2", "mpt", "rwkv"})
"""Models that let packed rows see each other, which their `layer_types` do not show. gpt_oss does so without flash
attention."""


def check_attention(native: dict[str, Any]) -> None:
    """Raise ConfigError where verl needs flash attention and does not have it."""
    model = native["actor_rollout_ref"]["model"]
    how = attention(model)
    if how == FLASH and find_spec("flash_attn") is None:
        raise ConfigError(
            "missing-package",
            f"verl uses {FLASH} for attention, and flash-attn is not installed.",
            f"Install flash-attn (docs/backends/verl.md says how), or set {HOW}=sdpa.",
        )
    for key, size in _sequence_parallel(native):
        if not is_flash(how):
            raise ConfigError(
                "unsupported-attention",
                f"`{key}` is {size}, and `{HOW}` is {how}: only in flash attention does verl exchange heads, and "
                "without it each GPU would attend to its own part of a sequence.",
                f"Set {HOW}={FLASH}, or {key}=1.",
            )
        if not model["use_remove_padding"]:
            raise ConfigError(
                "unsupported-attention",
                f"`{key}` is {size}, and `{MODEL}.use_remove_padding` is false: verl splits only packed rows.",
                f"Leave use_remove_padding=true, or set {key}=1.",
            )


def attention(model: dict[str, Any]) -> str:
    """The attention that verl gives the model; flash attention where nothing is said."""
    return str(model["override_config"].get("attn_implementation", FLASH))


def is_flash(how: str) -> bool:
    """Whether transformers computes it by flash attention, of any version."""
    return how.startswith("flash_attention")


def sequence_parallel_size(actor: Any) -> int:
    """GPUs that share a sequence. verl reads both keys; the one of the actor wins when it is more than 1."""
    own = int(actor.get(ULYSSES, 1))
    return own if own > 1 else int((actor.get("fsdp_config") or {}).get(ULYSSES, 1))


def check_packing(model_type: str, layer_types: list[str], native: Any) -> None:
    """Raise ConfigError where rows of a micro-batch would be packed, and the model would mix them up.

    Args:
        model_type: of the model's configuration.
        layer_types: of the model's configuration; empty where it does not say.
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
            f"`{MODEL}.use_remove_padding` is true, and {why} let rows that are packed together see each other.",
            f"Set {MODEL}.use_remove_padding=false.",
        )


def _sequence_parallel(native: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Keys that split sequences over GPUs, with their values above 1."""
    for name in ("actor", "ref"):
        role = native["actor_rollout_ref"][name]
        for key, section in ((name, role), (f"{name}.fsdp_config", role.get("fsdp_config") or {})):
            if int(section.get(ULYSSES) or 1) > 1:
                yield f"actor_rollout_ref.{key}.{ULYSSES}", int(section[ULYSSES])
