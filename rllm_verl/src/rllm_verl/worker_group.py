"""The training processes: verl's workers, one per GPU, each with a shard of the model."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group
from tensordict import TensorDict
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup, ResourcePoolManager

from rllm_verl.cluster import Wanted
from rllm_verl.native import worker_config
from rllm_verl.processes import Process, process_of
from rllm_verl.worker import TrainingWorker

GROUPS_PER_GPU = 1
"""One process contains training, the reference model and the sender of weights."""


class WorkerGroup:
    """verl's workers as `rllm_verl.workers.Workers`. Every call blocks until all workers are done."""

    def __init__(self, config: Any, wanted: Wanted, *, with_reference: bool) -> None:
        """Start the processes without waiting for them. Call `wait` next.

        Args:
            config: verl's whole configuration (DictConfig).
            wanted: the run's GPUs.
            with_reference: True to keep a frozen copy of the model for reference log-probs.
        """
        role = "actor_rollout_ref" if with_reference else "actor_rollout"
        name = f"rllm-{uuid.uuid4().hex[:12]}"  # runs may share a cluster
        pools = ResourcePoolManager({name: [wanted.per_node] * wanted.nodes}, {role: name}, GROUPS_PER_GPU)
        pools.create_resource_pool()
        self.pool = pools.get_resource_pool(role)
        self._started = False
        self.group = RayWorkerGroup(
            resource_pool=self.pool,
            ray_cls_with_init=RayClassWithInitArgs(ray.remote(TrainingWorker), config=worker_config(config), role=role),
            device_name=config.trainer.device,
        )
        self.processes: Sequence[Process] = ()

    def wait(self) -> None:
        """Return when all processes answer."""
        self.processes = [process_of(f"worker {rank}", handle) for rank, handle in enumerate(self.group.workers)]

    def init_model(self) -> None:
        self.group.init_model()
        # Queried once, because rows are distributed over data parallel ranks. There are fewer of them than workers if
        # the model is also split by tensor, pipeline or sequence parallelism.
        self.data_parallel_size = max(self.group._query_dispatch_info("actor")) + 1

    def set_loss_fn(self, loss: Any) -> None:
        self.group.set_loss_fn(loss)

    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        return _got(self.group.compute_log_prob(data))

    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        return _got(self.group.compute_ref_log_prob(data))

    def optimizer_zero_grad(self) -> None:
        self.group.optimizer_zero_grad()

    def forward_backward(self, data: TensorDict) -> TensorDict:
        return _got(self.group.forward_backward(data))

    def optimizer_step(self, parameters: dict[str, float]) -> dict[str, float]:
        answers = self.group.optimizer_step(parameters)
        return next((answer for answer in answers if answer), {})

    def save_shards(self, directory: str) -> None:
        self.group.save_shard(directory)

    def load_shards(self, directory: str) -> None:
        self.group.load_shard(directory)

    def save_checkpoint(self, directory: str, step: int) -> None:
        self.group.save_checkpoint(directory, None, step)

    def load_checkpoint(self, directory: str) -> None:
        self.group.load_checkpoint(directory)

    def kill(self) -> None:
        """Kill the processes at once."""
        for handle in self.group.workers:
            ray.kill(handle)
        for placement_group in self.pool.pgs or ():
            remove_placement_group(placement_group)


def _got(answer: Any) -> TensorDict:
    """Return the result. Calls that do not block return a future, which is awaited here."""
    return answer if isinstance(answer, TensorDict) else answer.get()
