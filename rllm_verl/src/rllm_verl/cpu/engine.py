"""verl's own FSDP2 engine, registered for the device ``cpu``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from rllm_core.errors import ConfigError
from rllm_verl.cpu import platform


class CpuEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """A causal language model that is sharded over processes, which communicate through gloo."""

    def __init__(self, model_config: Any, engine_config: Any, *others: Any, **named_others: Any) -> None:
        """Create the engine; see verl. Raise ConfigError for FSDP1, because its streams need an accelerator."""
        if engine_config.strategy != "fsdp2":
            raise ConfigError(
                "not-for-cpu",
                f"strategy={engine_config.strategy!r} does not run on a CPU.",
                "Set actor_rollout_ref.actor.strategy=fsdp2 and actor_rollout_ref.ref.strategy=fsdp2.",
            )
        super().__init__(model_config, engine_config, *others, **named_others)

    def _build_fsdp_module(self, module: nn.Module) -> nn.Module:
        with _unpinned_offloading():
            sharded: nn.Module = super()._build_fsdp_module(module)
        return sharded


@contextmanager
def _unpinned_offloading() -> Iterator[None]:
    """Switch off pinned memory, to which verl offloads untrained models. Only a CUDA driver can pin memory."""
    policy = transformer_impl.CPUOffloadPolicy

    def make_unpinned_policy(pin_memory: bool = True) -> Any:
        return policy(pin_memory=False)

    transformer_impl.CPUOffloadPolicy = make_unpinned_policy
    try:
        yield
    finally:
        transformer_impl.CPUOffloadPolicy = policy


def register() -> None:
    """Register the engine under both names, so that the unsupported strategy raises a clear error."""
    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=platform.NAME)(CpuEngine)
