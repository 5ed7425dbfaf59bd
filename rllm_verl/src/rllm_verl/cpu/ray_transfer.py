"""verl's checkpoint engine ``rllm_ray``: weights reach rollout replicas of their own as messages of Ray.

verl calls it in the training workers, and in the process beside each server that hands weights on to it.
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

from rllm_verl.cpu.adapter import Weights
from rllm_verl.cpu.buckets import Arrays, Buckets
from rllm_verl.placement import BY_RAY


class RayTransfer(CheckpointEngine):  # type: ignore[misc]
    """One end of the transfer. The first training worker sends; every replica receives all weights."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        """See verl. `bucket_size`: bytes of a message; `is_master`: whether this is the first training worker."""
        self._max_bytes = bucket_size
        self._sends = is_master
        self._receivers: Sequence[Any] = ()

    def prepare(self) -> Any:
        """Begin a transfer; returns Ray's handle of this process."""
        self._arrived: asyncio.Queue[Arrays | None] = asyncio.Queue()
        return ray.get_runtime_context().current_actor

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell training workers who receives. `metadata` are handles, those of the training workers first."""
        receivers = list(metadata[actor_wg_world_size:])
        return {"receivers": [receivers] * actor_wg_world_size}, {"receivers": [[]] * rollout_world_size}

    def init_process_group(self, receivers: Sequence[Any]) -> None:
        """Take what `build_topology` says."""
        self._receivers = receivers

    def finalize(self) -> None:
        """End a transfer."""
        self._receivers = ()

    async def send_weights(self, weights: Weights, global_steps: int | None = None) -> None:
        """Send weights to all receivers. Every worker takes `weights` to the end: each is gathered from all of them.

        Raises:
            RayError: a receiver is gone.
        """
        buckets, failure = Buckets(self._max_bytes), None
        async for name, weight in ensure_async_iterator(weights):
            bucket = buckets.add(name, weight) if self._sends else None
            if bucket is not None and failure is None:
                failure = await self._failure_of_sending(bucket)
        if not self._sends:
            return
        for last in (buckets.rest(), None):
            failure = failure or await self._failure_of_sending(last)
        if failure is not None:
            raise failure

    def take(self, bucket: Arrays | None) -> None:
        """Receive a message; None is the last of a transfer."""
        self._arrived.put_nowait(bucket)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """Yield float32 weights as they arrive."""
        while (bucket := await self._arrived.get()) is not None:
            for name, values in bucket.items():
                # A copy: Ray's arrays are read-only views into memory that it wants back.
                yield name, torch.from_numpy(np.array(values))

    async def _failure_of_sending(self, bucket: Arrays | None) -> RayError | None:
        message = ray.put(bucket)
        calls = [each.execute_checkpoint_engine.remote("take", message) for each in self._receivers]
        try:
            await asyncio.gather(*calls)
        except RayError as error:
            return error
        return None


def register() -> None:
    """Offer the engine as ``actor_rollout_ref.rollout.checkpoint_engine.backend=rllm_ray``."""
    CheckpointEngineRegistry.register(BY_RAY)(RayTransfer)
