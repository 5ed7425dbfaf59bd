"""verl's rollout replica ``rllm_hf``: one rollout server for each training worker, on the worker's machine."""

from __future__ import annotations

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from rllm_verl.cpu.server_settings import server_settings

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


def register() -> None:
    """Register the replica as ``actor_rollout_ref.rollout.name=rllm_hf``."""
    RolloutReplicaRegistry.register(NAME, lambda: CpuReplica)
