"""Rollout servers on the GPUs that train, in turn with training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl.workers.rollout.llm_server import LLMServerManager

from rllm_verl.servers import Servers

if TYPE_CHECKING:
    from rllm_verl.worker_group import WorkerGroup


class ServersOnSharedGpus(Servers):
    """A server for each worker, or for several that split a model. It sleeps while they train."""

    def __init__(self, config: Any, workers: WorkerGroup) -> None:
        super().__init__(config, workers)
        self._sleeps = bool(config.actor_rollout_ref.rollout.free_cache_engine)
        self.asleep = True
        self._transfer.sleep_replicas()

    @staticmethod
    def _start(config: Any, workers: WorkerGroup) -> LLMServerManager:
        return LLMServerManager.create(config=config, worker_group=workers.group, rollout_resource_pool=workers.pool)

    def make_room(self) -> None:
        """Put weights and caches away: the memory is needed for training."""
        if self._sleeps and not self.asleep:
            self._transfer.sleep_replicas()
            self.asleep = True

    def sync_weights(self, version: int) -> None:
        super().sync_weights(version)
        self.asleep = False
