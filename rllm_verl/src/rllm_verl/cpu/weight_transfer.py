"""verl's checkpoint engine ``rllm_ray``: weights to rollouts that have machines of their own, through Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import ray
import torch
from torch import Tensor
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from rllm_verl.cpu.buckets import Buckets
from rllm_verl.cpu.mailbox import Mailbox

NAME = "rllm_ray"


class RayWeightTransfer(CheckpointEngine):  # type: ignore[misc]
    """In a trainer's worker it sends, in a rollout's worker it receives; the first trainer sends for all of them."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        """`bucket_size`: bytes of a message; `is_master`: whether this is the trainer that sends."""
        self._bucket_bytes = bucket_size
        self._is_sender = is_master
        self._mailbox: Any = None

    def prepare(self) -> dict[str, Any]:
        """Nothing to tell: who sends and how many read is known."""
        return {}

    @classmethod
    def build_topology(
        cls, actor_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """One mailbox, for the trainers and the rollouts."""
        mailbox = ray.remote(Mailbox).options(num_cpus=0).remote(rollout_world_size)
        return {"mailbox": [mailbox] * actor_world_size}, {"mailbox": [mailbox] * rollout_world_size}

    def init_process_group(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def finalize(self) -> None:
        """Let go of the mailbox: its process ends when all have."""
        self._mailbox = None

    async def send_weights(self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None) -> None:
        """Send all weights. Every trainer goes through them: each is gathered from all trainers."""
        if not self._is_sender:
            for _ in weights:
                pass
            return
        buckets = Buckets(self._bucket_bytes)
        try:
            for name, weight in weights:
                bucket = buckets.add(name, weight)
                if bucket is not None:
                    await self._mailbox.put.remote(bucket)
            await self._mailbox.put.remote(buckets.rest())
            await self._mailbox.put.remote(None)
        except Exception as error:
            await self._mailbox.fail.remote(f"{type(error).__name__}: {error}")
            raise

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """Yield the weights that the trainer sends.

        Raises:
            BackendError: the trainer could not send them.
        """
        number = 0
        while (bucket := await self._mailbox.take.remote(number)) is not None:
            for name, values in bucket.items():
                yield name, torch.from_numpy(values.copy())
            number += 1


def register() -> None:
    """Offer the engine as ``actor_rollout_ref.rollout.checkpoint_engine.backend=rllm_ray``."""
    CheckpointEngineRegistry.register(NAME)(RayWeightTransfer)
