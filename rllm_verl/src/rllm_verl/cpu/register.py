"""What importing verl loads (entry point ``verl.plugins``): makes verl run on a CPU where ``VERL_PLATFORM=cpu``."""

from __future__ import annotations

import logging
import os
import warnings


def wanted() -> bool:
    """Whether this process was told to run verl on a CPU. Never guessed: head nodes of GPU clusters have no GPU."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def register() -> None:
    """Tell verl of the platform, its process groups, training engine, rollout replica and transfer of weights."""
    # In this order: modules of verl that the later ones import ask for the platform, and copy the function.
    from rllm_verl.cpu import platform, process_group

    platform.register()
    process_group.register()

    with warnings.catch_warnings():
        # verl warns of engines for GPUs that are not installed, and of what it uses of Ray: nobody here can act on it.
        warnings.simplefilter("ignore")
        from rllm_verl.cpu import adapter, engine, ray_transfer, replica, vllm_version

    engine.register()
    replica.register()
    adapter.register()
    ray_transfer.register()
    vllm_version.register()


if wanted():
    try:
        register()
    except Exception:
        # verl goes on without a plugin that fails, and says nothing.
        logging.getLogger(__name__).exception("rllm-verl cannot prepare verl for the CPU")
        raise
