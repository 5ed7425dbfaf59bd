"""Rollout servers on GPUs of their own, which sample while workers train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import remove_placement_group
from verl.workers.rollout.llm_server import LLMServerManager

from rllm_verl.processes import process_of
from rllm_verl.servers import Servers
from rllm_verl.sockets import name_socket

if TYPE_CHECKING:
    from rllm_verl.worker_group import WorkerGroup


class ServersApart(Servers):
    """verl's standalone replicas. Beside each server, a process for each of its GPUs receives weights.

    `sync_weights` cuts replies off, brings weights and lets the servers go on: who asked asks for the rest.
    """

    def __init__(self, config: Any, workers: WorkerGroup) -> None:
        super().__init__(config, workers)
        receivers = [each for replica in self._manager.get_replicas() for each in replica.workers]
        ray.get([each.__ray_call__.remote(_name_socket) for each in receivers])
        self.processes = [
            *self.processes,
            *(process_of(f"receiver of weights {number}", handle) for number, handle in enumerate(receivers)),
        ]

    @staticmethod
    def _start(config: Any, workers: WorkerGroup) -> LLMServerManager:
        return LLMServerManager.create(config=config)

    def make_room(self) -> None:
        """Nothing: training has its own memory."""

    def kill(self) -> None:
        super().kill()
        for replica in self._manager.get_replicas():
            for handle in replica.workers:
                ray.kill(handle)
            for placement_group in replica.resource_pool.pgs or ():
                remove_placement_group(placement_group)


def _name_socket(receiver: Any) -> None:
    """In the process that hands weights on to vLLM."""
    name_socket(receiver.server_adapter, ray.get_runtime_context().get_job_id())
