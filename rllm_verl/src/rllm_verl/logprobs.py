"""The log-probs that rollout servers record. They are taken before top-p and top-k if vLLM has a mode for that.

vLLM has two modes. `processed_logprobs` come from softmax(logits / temperature) after top-p and top-k.
`raw_logprobs` come from softmax(logits), before the temperature too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllm_core.contracts.backend import DerivedKey
from rllm_core.errors import ConfigError
from rllm_verl.keys import ROLLOUT

LOGPROBS_MODE = f"{ROLLOUT}.logprobs_mode"
RAW, PROCESSED = "raw_logprobs", "processed_logprobs"
VLLM = "vllm"
CPU_SERVER = "rllm_hf"
"""The rollout server of the profile `cpu`. It records log-probs before top-p and top-k at any temperature."""


def _mode(temperature: float, top_p: float, top_k: int) -> str:
    return RAW if temperature == 1 and (top_p < 1 or top_k > 0) else PROCESSED


DERIVED_LOGPROBS_MODE = DerivedKey(
    native=LOGPROBS_MODE,
    of=("sampling.train.temperature", "sampling.train.top_p", "sampling.train.top_k"),
    derive=_mode,
)


def check_logprobs(native: dict[str, Any]) -> None:
    """Raise ConfigError if vLLM's mode does not return the sampling policy's log-probs."""
    rollout = native["actor_rollout_ref"]["rollout"]
    if rollout["name"] != VLLM:
        return
    if "logprobs_mode" in (rollout["engine_kwargs"].get(VLLM) or {}):
        raise ConfigError(
            "conflicting-keys",
            f"`{ROLLOUT}.engine_kwargs.vllm.logprobs_mode` is set, but its key is `{LOGPROBS_MODE}`.",
            f"Remove both keys. {LOGPROBS_MODE} is derived from sampling.train.",
        )
    mode, temperature = rollout["logprobs_mode"], rollout["temperature"]
    if (setting := _find_setting_that_needs_logprobs(native)) and not has_untruncated_logprobs(rollout):
        what = f"rllm.algorithm.rollout_correction.{setting} needs the sampler's log-probs"
        if temperature == 1:
            raise ConfigError(
                "bad-logprobs-mode",
                f"{what}, but with `{LOGPROBS_MODE}` {mode} vLLM records none before top-p and top-k.",
                f"Remove {LOGPROBS_MODE}. It is derived from sampling.train.",
            )
        raise ConfigError(
            "missing-logprobs",
            f"{what}, but vLLM records none before top-p and top-k at sampling.train.temperature={temperature}.",
            "Set sampling.train.top_p=1 and sampling.train.top_k=-1, or set sampling.train.temperature=1.",
        )
    if mode not in (RAW, PROCESSED):
        raise ConfigError(
            "wrong-value",
            f"`{LOGPROBS_MODE}` is {mode!r}: expected {PROCESSED} or {RAW}.",
            "Remove the key. It is derived from sampling.train.",
        )
    if mode == RAW and temperature not in (0, 1):
        raise ConfigError(
            "bad-logprobs-mode",
            f"`{LOGPROBS_MODE}` is {RAW}, which ignores the temperature, but `sampling.train.temperature` is "
            f"{temperature}.",
            f"Remove {LOGPROBS_MODE}. It is derived from sampling.train.",
        )


def _find_setting_that_needs_logprobs(native: dict[str, Any]) -> str | None:
    """Return the setting that uses the sampler's log-probs. None if the old log-probs come from the trainer."""
    correction = native["algorithm"]["rollout_correction"]
    if correction["rollout_is"] is not None:
        return f"tis_mode={correction['rollout_is']}"
    return "bypass_mode=true" if correction["bypass_mode"] else None


def has_untruncated_logprobs(rollout: Mapping[str, Any]) -> bool:
    """Return True if a run's servers record log-probs of softmax(logits / temperature), before top-p and top-k.

    Args:
        rollout: verl's section ``actor_rollout_ref.rollout``.
    """
    truncates = rollout["top_p"] < 1 or rollout["top_k"] > 0
    return not truncates or rollout["name"] == CPU_SERVER or (rollout["name"], rollout["logprobs_mode"]) == (VLLM, RAW)
