"""Which log-probs the rollout servers record: before top-p and top-k wherever vLLM has a mode for that.

vLLM has two. `processed_logprobs` are those of softmax(logits / temperature) after top-p and top-k; `raw_logprobs` are
those of softmax(logits), before the temperature too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllm_core.contracts.backend import DerivedKey
from rllm_core.errors import ConfigError

ROLLOUT = "actor_rollout_ref.rollout"
LOGPROBS_MODE = f"{ROLLOUT}.logprobs_mode"
RAW, PROCESSED = "raw_logprobs", "processed_logprobs"
VLLM = "vllm"
OF_THE_CPU = "rllm_hf"
"""The rollout of the profile `cpu`, which records before top-p and top-k at any temperature."""


def _mode(temperature: float, top_p: float, top_k: int) -> str:
    return RAW if temperature == 1 and (top_p < 1 or top_k > 0) else PROCESSED


MODE_FOLLOWS = DerivedKey(
    native=LOGPROBS_MODE,
    of=("sampling.train.temperature", "sampling.train.top_p", "sampling.train.top_k"),
    derive=_mode,
)


def check_logprobs(native: dict[str, Any]) -> None:
    """Raise ConfigError for a mode of vLLM that does not give log-probs of the sampling policy."""
    rollout = native["actor_rollout_ref"]["rollout"]
    if rollout["name"] != VLLM:
        return
    if "logprobs_mode" in (rollout["engine_kwargs"].get(VLLM) or {}):
        raise ConfigError(
            "conflicting-keys",
            f"`{ROLLOUT}.engine_kwargs.vllm.logprobs_mode` is set, and `{LOGPROBS_MODE}` is its key.",
            f"Leave both out: {LOGPROBS_MODE} follows from sampling.train.",
        )
    mode, temperature = rollout["logprobs_mode"], rollout["temperature"]
    if (asked := _asks_for_them(native)) and not before_truncation(rollout):
        what = f"rllm.algorithm.rollout_correction.{asked} needs the log-probs that the sampler reports"
        if temperature == 1:
            raise ConfigError(
                "bad-logprobs-mode",
                f"{what}, and with `{LOGPROBS_MODE}` {mode} vLLM has none before top-p and top-k.",
                f"Leave {LOGPROBS_MODE} out: it follows from sampling.train.",
            )
        raise ConfigError(
            "missing-logprobs",
            f"{what}, and vLLM has none before top-p and top-k at sampling.train.temperature={temperature}.",
            "Set sampling.train.top_p to 1 and sampling.train.top_k to -1, or the temperature to 1.",
        )
    if mode not in (RAW, PROCESSED):
        raise ConfigError(
            "wrong-value",
            f"`{LOGPROBS_MODE}` is {mode!r}: expected {PROCESSED} or {RAW}.",
            "Leave it out: it follows from sampling.train.",
        )
    if mode == RAW and temperature not in (0, 1):
        raise ConfigError(
            "bad-logprobs-mode",
            f"`{LOGPROBS_MODE}` is {RAW}, which leaves out the temperature, and `sampling.train.temperature` is "
            f"{temperature}.",
            f"Leave {LOGPROBS_MODE} out: it follows from sampling.train.",
        )


def _asks_for_them(native: dict[str, Any]) -> str | None:
    """The setting that uses the sampler's log-probs; None where old log-probs are the trainer's."""
    correction = native["algorithm"]["rollout_correction"]
    if correction["rollout_is"] is not None:
        return f"tis_mode={correction['rollout_is']}"
    return "bypass_mode=true" if correction["bypass_mode"] else None


def before_truncation(rollout: Mapping[str, Any]) -> bool:
    """Whether the servers of a run record log-probs of softmax(logits / temperature), before top-p and top-k.

    Args:
        rollout: verl's section ``actor_rollout_ref.rollout``.
    """
    truncates = rollout["top_p"] < 1 or rollout["top_k"] > 0
    return not truncates or rollout["name"] == OF_THE_CPU or (rollout["name"], rollout["logprobs_mode"]) == (VLLM, RAW)
