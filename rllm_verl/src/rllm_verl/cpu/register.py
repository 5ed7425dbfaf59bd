"""The plugin that verl loads on import (entry point ``verl.plugins``). With ``VERL_PLATFORM=cpu`` it prepares verl for
a CPU."""

from __future__ import annotations

import logging
import os
import warnings


def is_cpu_requested() -> bool:
    """Return True if ``VERL_PLATFORM`` is ``cpu``. It is not detected: head nodes of GPU clusters have no GPU."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def register() -> None:
    """Register the platform, process groups, training engine, rollout replica and weight transfer with verl."""
    # The order matters. The later modules import verl modules that read the platform and copy the function.
    from rllm_verl.cpu import platform, process_group

    platform.register()
    process_group.register()

    with warnings.catch_warnings():
        # verl warns about missing GPU engines and about its use of Ray. The user can do nothing about these warnings.
        warnings.simplefilter("ignore")
        from rllm_verl.cpu import adapter, engine, ray_transfer, replica, vllm_version

    engine.register()
    replica.register()
    adapter.register()
    ray_transfer.register()
    vllm_version.register()


if is_cpu_requested():
    try:
        register()
    except Exception:
        # verl ignores a plugin that fails, without a message. So log the error here.
        logging.getLogger(__name__).exception("rllm-verl cannot prepare verl for the CPU")
        raise
