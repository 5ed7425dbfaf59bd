"""verl's checkpoint engine ``rllm_ray``: it sends weights to separate rollout replicas as Ray messages.

verl calls it in the training workers, and in the process next to each server that passes weights to the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from torch import Tensor
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from rllm_verl.cpu.replica import Weights
from rllm_verl.cpu.weights import Bucket, Buckets
from rllm_verl.gpus import BY_RAY


class RayTransfer(CheckpointEngine):  # type: ignore[misc]
    """One end of the transfer. The first training worker sends, and every replica receives all weights."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        """Create one end; see verl. `bucket_size` is a message's size in bytes. The first worker has `is_master`."""
        self._max_bytes = bucket_size
        self._sends = is_master
        self._receivers: Sequence[Any] = ()

    def prepare(self) -> Any:
        """Start a transfer, and return Ray's handle of this process."""
        self._arrived: asyncio.Queue[Bucket | None] = asyncio.Queue()
        return ray.get_runtime_context().current_actor

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the receivers for each training worker. `metadata` are handles, first of the training workers."""
        receivers = list(metadata[actor_wg_world_size:])
        return {"receivers": [receivers] * actor_wg_world_size}, {"receivers": [[]] * rollout_world_size}

    def init_process_group(self, receivers: Sequence[Any]) -> None:
        """Store the receivers from `build_topology`."""
        self._receivers = receivers

    def finalize(self) -> None:
        """End a transfer."""
        self._receivers = ()

    async def send_weights(self, weights: Weights, global_steps: int | None = None) -> None:
        """Send weights to all receivers. Each worker reads all `weights`, because each is gathered from all workers.

        Raises:
            RayError: a receiver has stopped.
        """
        buckets, failure = Buckets(self._max_bytes), None
        async for name, weight in ensure_async_iterator(weights):
            bucket = buckets.add(name, weight) if self._sends else None
            if bucket is not None and failure is None:
                failure = await self._send(bucket)
        if not self._sends:
            return
        for last in (buckets.rest(), None):
            failure = failure or await self._send(last)
        if failure is not None:
            raise failure

    def take(self, bucket: Bucket | None) -> None:
        """Receive a message. None marks the end of a transfer."""
        self._arrived.put_nowait(bucket)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """Yield float32 weights as they arrive."""
        while (bucket := await self._arrived.get()) is not None:
            for name, values in bucket.items():
                # Copy them, because Ray's arrays are read-only views into memory that Ray reuses.
                yield name, torch.from_numpy(np.array(values))

    async def _send(self, bucket: Bucket | None) -> RayError | None:
        message = ray.put(bucket)
        calls = [each.execute_checkpoint_engine.remote("take", message) for each in self._receivers]
        try:
            await asyncio.gather(*calls)
        except RayError as error:
            return error
        return None


def register() -> None:
    """Register the engine as ``actor_rollout_ref.rollout.checkpoint_engine.backend=rllm_ray``."""
    CheckpointEngineRegistry.register(BY_RAY)(RayTransfer)
