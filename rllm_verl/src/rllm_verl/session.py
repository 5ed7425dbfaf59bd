"""A run's verl and Ray objects, with blocking calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import RunContext, UpdatePlan, UpdateResult
from rllm_core.data.batch import TokenBatch
from rllm_verl.cluster import Cluster, Wanted
from rllm_verl.columns import fill_columns
from rllm_verl.logprobs import before_truncation
from rllm_verl.model import Model
from rllm_verl.native import SHARDED_BY_US, column_settings, needs_reference_worker, update_settings
from rllm_verl.placement import gpus_apart, servers_apart
from rllm_verl.processes import Process, dead_daemon, kill_workers, unnamed_processes
from rllm_verl.rollouts import VerlEngine
from rllm_verl.servers import Servers, ServersApart, ServersOnSharedGpus
from rllm_verl.sockets import new_run
from rllm_verl.update import Updater
from rllm_verl.worker_group import WorkerGroup


class Session:
    """A connection to Ray. Next, call `start_workers`, `load_model`, `start_servers` and `sync_weights` in order."""

    def __init__(self, run: RunContext, native: Any, model: Model, environment: Mapping[str, str]) -> None:
        self._run = run
        self._native = native
        # Create the renderer before the cluster, so that an unsupported template fails before weights are loaded.
        self._renderer = make_renderer(run, model.rendering)
        self._workers: WorkerGroup | None = None
        self._servers: Servers | None = None
        self._wanted = Wanted(
            per_node=native.trainer.n_gpus_per_node, nodes=native.trainer.nnodes, apart=gpus_apart(native)
        )
        # verl's own variables work around problems of vLLM, NCCL and Megatron. The user's variables override them.
        of_verl = get_ppo_ray_runtime_env(native).get("env_vars") or {}
        self._cluster = Cluster.connect(native.ray_kwargs.ray_init, environment, of_verl | new_run())
        try:
            self._cluster.check(self._wanted)
        except BaseException:
            self._cluster.close()
            raise

    @property
    def n_workers(self) -> int:
        return self._wanted.per_node * self._wanted.nodes

    @property
    def strategy(self) -> str:
        return str(self._native.actor_rollout_ref.actor.strategy)

    @property
    def processes(self) -> Sequence[Process]:
        """The workers, then the servers. During the start, also processes that have no name yet."""
        named = [
            process for group in (self._workers, self._servers) if group is not None for process in group.processes
        ]
        starting = [] if self._servers is not None else unnamed_processes([process.pid for process in named])
        return [*named, *starting]

    @property
    def _keeps_shards(self) -> bool:
        return self.strategy == SHARDED_BY_US

    @property
    def saves_adapter(self) -> bool:
        """True if checkpoints contain a LoRA adapter that can be joined from the workers' shards."""
        role = self._native.actor_rollout_ref
        return self._keeps_shards and bool(role.model.lora_rank) and role.actor.fsdp_config.fsdp_size == -1

    @property
    def asleep(self) -> bool:
        """True if the rollout servers have freed their weights."""
        return self._servers is not None and self._servers.asleep

    def start_workers(self) -> None:
        self._workers = WorkerGroup(
            self._native, self._wanted, with_reference=needs_reference_worker(self._run, self._native)
        )
        self._workers.wait()

    def load_model(self) -> None:
        self.workers.init_model()
        settings, length = update_settings(self._run, self._native), self._run.config.data.max_response_length
        self._updater = Updater(settings, total_steps=self._run.total_steps, max_response_length=length)
        self._columns = column_settings(self._run, self._native)

    def start_servers(self) -> None:
        kind = ServersApart if servers_apart(self._native) else ServersOnSharedGpus
        self._servers = kind(self._native, self.workers)

    @property
    def workers(self) -> WorkerGroup:
        assert self._workers is not None
        return self._workers

    @property
    def servers(self) -> Servers:
        assert self._servers is not None
        return self._servers

    def engine(self, wake: Callable[[], Awaitable[None]], seconds: float) -> VerlEngine:
        """Return an engine that samples from the servers. `wake` and `seconds` are the same as in `VerlEngine`."""
        rollout = self._native.actor_rollout_ref.rollout
        return VerlEngine(
            self.servers.client(),
            self._renderer,
            max_context=rollout.max_model_len,
            logprobs_before_truncation=before_truncation(rollout),
            addresses=self.servers.addresses,
            seconds=seconds,
            processes=self.servers.processes,
            wake=wake,
        )

    def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        self.servers.make_room()
        return fill_columns(self.workers, batch, needs, self._columns)

    def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        self.servers.make_room()
        return self._updater.update(self.workers, batch, plan)

    def sync_weights(self, version: int) -> None:
        self.servers.sync_weights(version)

    def save(self, directory: Path, step: int) -> None:
        """Write a checkpoint: rllm's shards if the strategy is FSDP2, and verl's own files (the whole model)."""
        if self._keeps_shards:
            self.workers.save_shards(str(directory))
        self.workers.save_checkpoint(str(directory), step)

    def load(self, directory: Path) -> None:
        self.servers.make_room()
        if self._keeps_shards:
            self.workers.load_shards(str(directory))
        else:
            self.workers.load_checkpoint(str(directory))

    def kill(self) -> None:
        """Kill the processes at once. Calls that wait for them fail with an error."""
        if dead_daemon() is not None:
            # Ray would search for its missing processes for a minute.
            kill_workers()
            return
        for group in (self._servers, self._workers):
            if group is not None:
                group.kill()

    def interrupt(self) -> None:
        """Kill starting processes too, even if they have no handle yet. Calls that wait for them fail with an error."""
        self.kill()
        if self._cluster.owned:
            kill_workers()

    def close(self) -> None:
        """Kill the processes and disconnect from Ray. If Ray has stopped, the program's end disconnects."""
        try:
            self.kill()
        finally:
            if dead_daemon() is None:
                self._cluster.close()
