"""The trainer's side of a rollout server: lives in a worker and pushes the worker's weights to its server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Iterable
from typing import Any

import ray
from ray.exceptions import RayError
from torch import Tensor
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from rllm_core.errors import ConfigError
from rllm_verl.cpu.buckets import Buckets
from rllm_verl.cpu.replica import NAME, server_name

Weights = Iterable[tuple[str, Tensor]] | AsyncIterable[tuple[str, Tensor]]


class CpuRollout(BaseRollout):  # type: ignore[misc]
    """verl's handle on the server of this worker."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        """See verl. `replica_rank`: -1 for the server that goes with this process's rank."""
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        # A server holds a whole model: every worker has one of its own to push to.
        self.is_leader_rank = True
        self._server: Any = None

    @property
    def server(self) -> Any:
        """Ray's handle of the server, which is started after this process."""
        if self._server is None:
            self._server = ray.get_actor(server_name(ray.get_runtime_context().get_actor_id()))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        await self.server.wake_up.remote(tags)

    async def release(self) -> None:
        await self.server.sleep.remote()

    async def update_weights(
        self,
        weights: Weights,
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        peft_config: object = None,
        base_sync_done: bool = True,
    ) -> None:
        """Replace the server's weights.

        Args:
            weights: all of the model's. Taken to the end whatever happens: each is gathered from all workers, and a
                worker that leaves off leaves the others waiting.
            wire_format: verl's; whole tensors alone are understood.
            global_steps: the training step that made them, the server's new weight version.
            peft_config: of a LoRA model whose adapters are not merged.
            base_sync_done: verl's, about adapters.

        Raises:
            ConfigError: the weights are adapters, or changes only.
            BackendError: they are not those of the server's model.
        """
        _check(wire_format, peft_config)
        buckets = Buckets(self.config.checkpoint_engine.update_weights_bucket_megabytes << 20)
        server, failure = self.server, None
        async for name, weight in ensure_async_iterator(weights):
            bucket = buckets.add(name, weight)
            if bucket is not None and failure is None:
                failure = await _failure_of(server.stage_weights.remote(bucket))
        if failure is None:
            failure = await _failure_of(server.stage_weights.remote(buckets.rest()))
        if failure is not None:
            await server.drop_staged_weights.remote()
            raise failure
        await server.sync_weights.remote(global_steps or 0)


async def _failure_of(call: Awaitable[None]) -> RayError | None:
    """What went wrong with a call of the server, to be raised when that disturbs nobody."""
    try:
        await call
    except RayError as error:
        return error
    return None


def _check(wire_format: str, peft_config: object) -> None:
    if wire_format != "named_tensors":
        raise ConfigError(
            "unsupported-weight-transfer",
            f"The rollout server for CPUs takes whole weights, not {wire_format!r}.",
            "Set actor_rollout_ref.rollout.checkpoint_engine.backend to naive.",
        )
    if peft_config is not None:
        raise ConfigError(
            "lora-needs-merge",
            "The rollout server for CPUs takes no LoRA adapters.",
            "Set actor_rollout_ref.model.lora.merge=true: they are then merged into the weights that are sent.",
        )


def register() -> None:
    """Offer the adapter where verl looks for one; it has no function for that."""
    base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.{CpuRollout.__name__}"
