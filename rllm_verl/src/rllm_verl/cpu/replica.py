"""verl's rollout replica ``rllm_hf``: one rollout server for each training worker, on the worker's machine.

`CpuRollout` is the trainer's side. It runs in a worker and sends the worker's weights to its server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Awaitable, Iterable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry
from verl.workers.rollout.utils import ensure_async_iterator

from rllm_verl.cpu.messages import server_settings
from rllm_verl.cpu.weights import Buckets

NAME = "rllm_hf"


def server_name(worker: str) -> str:
    """Return the Ray name of a worker's server. `worker` is the actor id.

    The name contains the worker's id instead of its rank, because several runs can share a cluster.
    """
    return f"{NAME}_server_of_{worker}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """Starts a server. verl's base class forwards calls to it."""

    async def launch_servers(self) -> None:
        """Start the server and wait until it has loaded the model.

        Raises:
            ConfigError: the model cannot be loaded, or the server does not support a setting.
        """
        from verl.utils.fs import copy_to_local

        from rllm_verl.cpu.server import RolloutServer

        settings = server_settings(self.config, copy_to_local(self.model_config.path))
        node = await self.workers[0].__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        name = server_name(self.workers[0]._actor_id.hex())
        server = (
            ray.remote(RolloutServer)
            .options(
                name=name,
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
            )
            .remote(settings)
        )
        await server.__ray_ready__.remote()
        # verl only needs different addresses. This server has no HTTP API.
        self._server_address = name
        self._server_handle = server
        self.servers = [server]


Weights = Iterable[tuple[str, Tensor]] | AsyncIterable[tuple[str, Tensor]]


class CpuRollout(BaseRollout):  # type: ignore[misc]
    """verl's handle on the server of this worker."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        """Create the handle; see verl. A `replica_rank` of -1 selects the server for this process's rank."""
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        # A server contains a whole model, so each worker has its own server and sends weights to it.
        self.is_leader_rank = True
        self._server: Any = None

    @property
    def server(self) -> Any:
        """Ray's handle of the server, which starts after this process."""
        if self._server is None:
            self._server = ray.get_actor(server_name(ray.get_runtime_context().get_actor_id()))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        await self.server.wake_up.remote(tags)

    async def release(self) -> None:
        await self.server.sleep.remote()

    async def update_weights(self, weights: Weights, *_: object, global_steps: int | None = None, **__: object) -> None:
        """Replace the server's weights.

        The weights are whole, because the backend's checks reject adapters that are not merged.

        Args:
            weights: the weights by name. The method always reads all of them, because every worker must take part in
                gathering each weight.
            global_steps: the new weight version, or None for 0.

        Raises:
            BackendError: the weights do not match the server's model. It then keeps its old weights.
        """
        buckets = Buckets(self.config.checkpoint_engine.update_weights_bucket_megabytes << 20)
        server, failure = self.server, None
        async for name, weight in ensure_async_iterator(weights):
            bucket = buckets.add(name, weight)
            if bucket is not None and failure is None:
                failure = await _catch_error(server.stage_weights.remote(bucket))
        if failure is None:
            failure = await _catch_error(server.stage_weights.remote(buckets.rest()))
        if failure is not None:
            await server.drop_staged_weights.remote()
            raise failure
        await server.sync_weights.remote(global_steps or 0)


async def _catch_error(call: Awaitable[None]) -> RayError | None:
    """Return the error of a server call, so that the caller can raise it after it has read all weights."""
    try:
        await call
    except RayError as error:
        return error
    return None


def register() -> None:
    """Register the replica as ``actor_rollout_ref.rollout.name=rllm_hf``, and the workers' handle on its servers."""
    RolloutReplicaRegistry.register(NAME, lambda: CpuReplica)
    # verl has no function for this.
    base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.{CpuRollout.__name__}"
