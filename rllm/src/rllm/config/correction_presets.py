"""verl's presets of rollout correction: values that a name brings as defaults."""

from __future__ import annotations

from typing import Any

from rllm.config.layers import Layer, Tier, layer_from_dotted
from rllm_core.errors import ConfigError, did_you_mean

SECTION = "rllm.algorithm.rollout_correction"
_GEOMETRIC = {"reject": {"seq_mean_k1": [0.999, 1.001]}}
_K3 = {"reject": {"seq_mean_k3": 0.01}}
_TOKEN, _SEQUENCE = {"tis_mode": "token"}, {"tis_mode": "sequence"}
PRESETS: dict[str, dict[str, Any]] = {
    "disabled": {},
    "bypass_ppo_clip": {"bypass_mode": True},
    "decoupled_token_is": _TOKEN,
    "decoupled_seq_is": _SEQUENCE,
    "decoupled_token_icepop": _TOKEN | {"tis_cap": 5.0, "tis_floor": 0.5, "tis_beyond_cap": "mask"},
    "decoupled_seq_is_rs": _SEQUENCE | {"reject": {"seq_sum_k1": [0.5, 2.0]}},
    "decoupled_geo_rs": _GEOMETRIC,
    "decoupled_geo_rs_seq_tis": _GEOMETRIC | _SEQUENCE,
    "decoupled_geo_rs_token_tis": _GEOMETRIC | _TOKEN,
    "decoupled_k3_rs": _K3,
    "decoupled_k3_rs_seq_tis": _K3 | _SEQUENCE,
    "decoupled_k3_rs_token_tis": _K3 | _TOKEN,
}
"""Keys of the section that each preset of verl 0.9.1 sets."""


def preset_layer(name: object, origin: str) -> Layer:
    """Return the layer of a preset, which is lower than any value of the user.

    Raises:
        ConfigError: verl has no such preset, or it cannot be used here.
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(
            "unknown-choice",
            f"`{SECTION}.preset` is {name!r} (from {origin}), which is not a preset.",
            did_you_mean(str(name), PRESETS) or f"Use one of {', '.join(PRESETS)}.",
        )
    values = {f"{SECTION}.{key}": value for key, value in PRESETS[name].items()}
    return layer_from_dotted(values, f"preset {name}", Tier.ENVIRONMENT)
