"""verl's rollout servers, on the training GPUs or on separate GPUs, and the weight transfer to them."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import remove_placement_group
from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerManager

from rllm_verl.processes import Process, process_of
from rllm_verl.sockets import name_socket

if TYPE_CHECKING:
    from verl.workers.rollout.llm_server import LLMServerClient

    from rllm_verl.worker_group import WorkerGroup


class Servers(ABC):
    """A run's rollout servers. Every call blocks.

    Do not call it on a thread with a running event loop, because verl would then return a coroutine.
    """

    asleep = False
    """True if the servers have freed their weights."""

    def __init__(self, config: Any, workers: WorkerGroup) -> None:
        """Start the servers. Their weights are not valid before the first `sync_weights`.

        Args:
            config: verl's whole configuration (DictConfig).
            workers: the workers, which send their weights to the servers.
        """
        self.processes: Sequence[Process] = ()
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its addresses
            self._manager = self._start(config, workers)
        self.processes = [
            process_of(f"rollout server {number}", handle) for number, handle in enumerate(self._manager.server_handles)
        ]
        self._transfer = CheckpointEngineManager(
            config=omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine),
            actor_wg=workers.group,
            replicas=self._manager.get_replicas(),
        )
        # The load balancer's process needs seconds to start. Wait here, so that the first rollout does not wait.
        ray.get(self._manager.global_load_balancer.require_acquire_fields.remote())

    @staticmethod
    @abstractmethod
    def _start(config: Any, workers: WorkerGroup) -> LLMServerManager:
        """Start the servers on their GPUs."""

    @property
    def addresses(self) -> list[str]:
        """The host:port of each server's OpenAI-compatible API."""
        return list(self._manager.get_addresses())

    def client(self) -> LLMServerClient:
        return self._manager.get_client()

    @abstractmethod
    def make_room(self) -> None:
        """Free memory, because the workers train next."""

    def sync_weights(self, version: int) -> None:
        """Send the trainer's weights to the servers, which then sample from them and report `version`."""
        self._transfer.update_weights(version)

    def kill(self) -> None:
        """Kill the processes at once."""
        for replica in self._manager.get_replicas():
            for handle in replica.servers:
                ray.kill(handle)
        ray.kill(self._manager.global_load_balancer)


class ServersOnSharedGpus(Servers):
    """Servers on the training GPUs: one server per worker, or per group of workers that split a model.

    A server sleeps during training.
    """

    def __init__(self, config: Any, workers: WorkerGroup) -> None:
        super().__init__(config, workers)
        self._sleeps = bool(config.actor_rollout_ref.rollout.free_cache_engine)
        self.asleep = True
        self._transfer.sleep_replicas()

    @staticmethod
    def _start(config: Any, workers: WorkerGroup) -> LLMServerManager:
        return LLMServerManager.create(config=config, worker_group=workers.group, rollout_resource_pool=workers.pool)

    def make_room(self) -> None:
        """Free weights and caches, because training needs the memory."""
        if self._sleeps and not self.asleep:
            self._transfer.sleep_replicas()
            self.asleep = True

    def sync_weights(self, version: int) -> None:
        super().sync_weights(version)
        self.asleep = False


class ServersApart(Servers):
    """Servers on separate GPUs: verl's standalone replicas, which sample during training.

    Next to each server, one process per GPU receives weights. `sync_weights` stops the running responses, sends the
    weights and lets the servers continue. The callers then request the rest of their responses.
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
        """Do nothing, because training has its own memory."""

    def kill(self) -> None:
        super().kill()
        for replica in self._manager.get_replicas():
            for handle in replica.workers:
                ray.kill(handle)
            for placement_group in replica.resource_pool.pgs or ():
                remove_placement_group(placement_group)


def _name_socket(receiver: Any) -> None:
    """Set the socket path in the process that passes weights to vLLM."""
    name_socket(receiver.server_adapter, ray.get_runtime_context().get_job_id())
