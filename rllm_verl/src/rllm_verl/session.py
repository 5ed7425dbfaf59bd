"""A run's verl and Ray objects, with blocking calls: workers, and rollout servers on the training GPUs or on others."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.placement_group import remove_placement_group
from verl.checkpoint_engine import CheckpointEngineManager
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerManager

from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import RunContext, UpdatePlan, UpdateResult
from rllm_core.contracts.weight_comparison import KnownFault, Probe
from rllm_core.data.batch import TokenBatch
from rllm_core.errors import BackendError
from rllm_verl.cluster import Cluster, RequiredGpus
from rllm_verl.columns import fill_columns, score_probe
from rllm_verl.gpus import is_disaggregated, num_rollout_gpus
from rllm_verl.logprobs import VLLM, has_untruncated_logprobs
from rllm_verl.model import Model
from rllm_verl.native import (
    SHARDED_BY_US,
    WORKER,
    WORKER_KEY,
    column_settings,
    needs_reference_worker,
    update_settings,
    worker_config,
)
from rllm_verl.processes import Process, dead_daemon, kill_workers, process_of, unnamed_processes
from rllm_verl.rollouts import VerlEngine
from rllm_verl.sockets import name_socket_of_receiver, new_run
from rllm_verl.update import Updater
from rllm_verl.worker_group import WorkerGroup

if TYPE_CHECKING:
    from verl.workers.rollout.llm_server import LLMServerClient

Scores = NDArray[np.float32]
FSDP = ("fsdp", "fsdp2")


class Session:
    """A connection to Ray. Next, call `start_workers`, `load_model`, `start_servers` and `sync_weights` in order."""

    def __init__(self, run: RunContext, native: Any, model: Model, environment: Mapping[str, str]) -> None:
        self._run = run
        self._native = native
        # Create the renderer before the cluster, so that an unsupported template fails before weights are loaded.
        self._renderer = make_renderer(run, model.rendering)
        self._workers: WorkerGroup | None = None
        self._servers: Servers | None = None
        self._required = RequiredGpus(
            per_node=native.trainer.n_gpus_per_node, nodes=native.trainer.nnodes, rollout=num_rollout_gpus(native)
        )
        # verl's own variables work around problems of vLLM, NCCL and Megatron. The user's variables override them.
        of_verl = get_ppo_ray_runtime_env(native).get("env_vars") or {}
        self._cluster = Cluster.connect(native.ray_kwargs.ray_init, environment, of_verl | new_run())
        try:
            self._cluster.check(self._required)
        except BaseException:
            self._cluster.close()
            raise

    @property
    def n_workers(self) -> int:
        return self._required.per_node * self._required.nodes

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
            worker_config(self._native),
            self._required,
            device=self._native.trainer.device,
            with_reference=needs_reference_worker(self._run, self._native),
        )
        self._workers.wait()

    def load_model(self) -> None:
        self.workers.init_model()
        settings, length = update_settings(self._run, self._native), self._run.config.data.max_response_length
        self._updater = Updater(settings, total_steps=self._run.total_steps, max_response_length=length)
        self._columns = column_settings(self._run, self._native)

    def start_servers(self) -> None:
        kind = DisaggregatedServers if is_disaggregated(self._native) else ColocatedServers
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
            logprobs_before_truncation=has_untruncated_logprobs(rollout),
            addresses=self.servers.addresses,
            seconds=seconds,
            processes=self.servers.processes,
            wake=wake,
        )

    def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        self.servers.make_room()
        return fill_columns(self.workers, batch, needs, self._columns)

    @property
    def can_apply_faults(self) -> bool:
        """True if the workers can score with faults of the weights. Their code depends on FSDP."""
        return self.strategy in FSDP

    def score(self, probe: Probe, fault: KnownFault | None) -> Scores:
        """Return the workers' scores of a probe, (n_score,), with a fault of the weights."""
        return score_probe(self.workers, probe, self._columns, fault)

    def digests(self) -> dict[str, str]:
        """Return the digests of the weights that the workers send to the servers, in the servers' type."""
        return self.workers.digests(self._native.actor_rollout_ref.rollout.dtype)

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


SERVER = "rollout server"
SCORING = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 0, "prompt_logprobs": 0}
"""Sampling parameters of a request for the log-probs of a prompt."""


def _read_scores(answer: Any, probe: Probe) -> Scores:
    """Return the scores of one row from verl's `TokenOutput`. Its last log-prob is a placeholder."""
    logprobs = answer.extra_fields.get("prompt_logprobs")
    if logprobs is None:
        raise BackendError("missing-logprobs", "A rollout server returned no log-probs of a prompt.")
    return np.array(logprobs, np.float32)[probe.prompt - 1 : -1, 0]


def make_directory(_: Any) -> str:
    """Return an empty directory on a server's machine, which only its user can read."""
    return tempfile.mkdtemp(prefix="rllm-verl-")


def take_digests(_: Any, directory: str) -> dict[str, str]:
    """Return the digests that a server's workers wrote into a directory, and remove it."""
    try:
        return {
            name: digest
            for path in Path(directory).iterdir()
            for name, digest in json.loads(path.read_text(encoding="utf-8")).items()
        }
    finally:
        shutil.rmtree(directory)


class Servers(ABC):
    """A run's rollout servers. Every call blocks.

    Do not call it on a thread with a running event loop, because verl would then return a coroutine.
    """

    asleep = False
    """True if the servers have freed their weights."""
    sleeps = False
    """True if the servers free their weights during training."""

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
            process_of(f"{SERVER} {number}", handle) for number, handle in enumerate(self._manager.server_handles)
        ]
        self._transfer = CheckpointEngineManager(
            config=omega_conf_to_dataclass(config.actor_rollout_ref.rollout.checkpoint_engine),
            actor_wg=workers.group,
            replicas=self._manager.get_replicas(),
        )
        options = config.actor_rollout_ref.rollout.engine_kwargs.get(VLLM) or {}
        self._digests_by_files = options.get(WORKER_KEY) == WORKER
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

    def score(self, probe: Probe) -> dict[str, Scores]:
        """Return each server's scores of a probe, (n_score,). They are its log-probs of prompts.

        Raises:
            BackendError: a server has not computed them.
        """
        rows = probe.tokens.tolist()
        calls = [
            handle.generate.remote(prompt_ids=row, sampling_params=dict(SCORING), request_id=uuid.uuid4().hex)
            for handle in self._manager.server_handles
            for row in rows
        ]
        scores = [_read_scores(answer, probe) for answer in ray.get(calls)]
        parts = [scores[start : start + len(rows)] for start in range(0, len(scores), len(rows))]
        return {name: np.concatenate(part) for name, part in zip(self.names, parts, strict=True)}

    @property
    def names(self) -> list[str]:
        """The servers' names, in the order of `score`."""
        return [f"{SERVER} {number}" for number in range(len(self._manager.server_handles))]

    def digests(self, server: str) -> dict[str, str]:
        """Return the digests of a server's tensors. Empty if it cannot compute them."""
        handle = self._manager.server_handles[self.names.index(server)]
        if self._digests_by_files:
            directory = ray.get(handle.__ray_call__.remote(make_directory))
            ray.get(handle.collective_rpc.remote("rllm_write_digests", args=(directory,)))
            digests: dict[str, str] = ray.get(handle.__ray_call__.remote(take_digests, directory))
            return digests
        return ray.get(handle.digests.remote()) if hasattr(handle, "digests") else {}

    def kill(self) -> None:
        """Kill the processes at once."""
        for replica in self._manager.get_replicas():
            for handle in replica.servers:
                ray.kill(handle)
        ray.kill(self._manager.global_load_balancer)


class ColocatedServers(Servers):
    """Servers on the training GPUs: one server per worker, or per group of workers that split a model.

    A server sleeps during training.
    """

    def __init__(self, config: Any, workers: WorkerGroup) -> None:
        super().__init__(config, workers)
        self.sleeps = bool(config.actor_rollout_ref.rollout.free_cache_engine)
        self.asleep = True
        self._transfer.sleep_replicas()

    @staticmethod
    def _start(config: Any, workers: WorkerGroup) -> LLMServerManager:
        return LLMServerManager.create(config=config, worker_group=workers.group, rollout_resource_pool=workers.pool)

    def make_room(self) -> None:
        """Free weights and caches, because training needs the memory."""
        if self.sleeps and not self.asleep:
            self._transfer.sleep_replicas()
            self.asleep = True

    def sync_weights(self, version: int) -> None:
        super().sync_weights(version)
        self.asleep = False


class DisaggregatedServers(Servers):
    """Servers on separate GPUs: verl's standalone replicas, which sample during training.

    Next to each server, one process per GPU receives weights. `sync_weights` stops the running responses, sends the
    weights and lets the servers continue. The callers then request the rest of their responses.
    """

    def __init__(self, config: Any, workers: WorkerGroup) -> None:
        super().__init__(config, workers)
        receivers = [each for replica in self._manager.get_replicas() for each in replica.workers]
        ray.get([each.__ray_call__.remote(name_socket_of_receiver) for each in receivers])
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
