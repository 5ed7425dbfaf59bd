"""The training processes: verl's workers, one per GPU, each with a shard of the model.

A shard is one process's part of every weight and of the optimizer. It is saved as safetensors, because verl's own
checkpoints are pickles, which can run code when they are read.

`with_fault` applies faults of weight syncs to a worker's weights. The check of weights compares their log-probs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.util.placement_group import remove_placement_group
from safetensors.torch import load_file, save_file
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup, ResourcePoolManager
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker

from rllm_backend_kit.weight_comparison import digest
from rllm_core.contracts.weight_comparison import KnownFault
from rllm_core.errors import CheckpointError
from rllm_verl.processes import Process, process_of
from rllm_verl.sockets import name_socket

WEIGHT, OPTIMIZER, RANDOM = "weight", "optimizer", "random"


def save_shard(
    file: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, random: dict[str, Tensor]
) -> None:
    """Write one rank's shard.

    Args:
        file: a new file in an existing directory.
        module: a module that FSDP2 has sharded. Untrained weights (below LoRA adapters) come from the base model and
            are not written.
        optimizer: the optimizer of the module's weights.
        random: states of torch's generators by device.
    """
    tensors = {f"{WEIGHT}/{name}": local_part(weight) for name, weight in trained_weights(module)}
    for name, weight in trained_weights(module):
        for key, value in optimizer.state.get(weight, {}).items():
            tensors[f"{OPTIMIZER}/{name}/{key}"] = local_part(value)
    tensors |= {f"{RANDOM}/{device}": state for device, state in random.items()}
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, file)


@torch.no_grad()
def load_shard(file: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Restore one rank's shard, bit for bit, and return the states of torch's generators.

    Raises:
        CheckpointError: the shard belongs to a different model.
    """
    tensors = load_file(file)
    trained = dict(trained_weights(module))
    saved = {name.removeprefix(f"{WEIGHT}/") for name in tensors if name.startswith(f"{WEIGHT}/")}
    wrong = sorted(saved ^ trained.keys()) or [
        name for name, weight in trained.items() if tensors[f"{WEIGHT}/{name}"].shape != local_part(weight).shape
    ]
    if wrong:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{file} contains the weights of a different model: {wrong[0]} differs.",
            "Resume with the same model with which you started the run.",
        )
    optimizer.state.clear()
    for name, weight in trained.items():
        local_part(weight).copy_(tensors[f"{WEIGHT}/{name}"])
        start = f"{OPTIMIZER}/{name}/"
        state = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        if state:
            optimizer.state[weight] = {key: _like(weight, value) for key, value in state.items()}
    return {name.removeprefix(f"{RANDOM}/"): state for name, state in tensors.items() if name.startswith(f"{RANDOM}/")}


def trained_weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in module.named_parameters() if weight.requires_grad)


def local_part(value: Any) -> Tensor:
    """Return this rank's part of a tensor. Values such as step counters are whole on every rank."""
    return value.to_local() if isinstance(value, DTensor) else torch.as_tensor(value)


def _like(weight: torch.nn.Parameter, value: Tensor) -> Tensor:
    """Return a restored entry of the optimizer's state. Moments are sharded like the weight, step counters are not."""
    if value.shape != local_part(weight).shape or value.ndim == 0:
        return value
    moment = torch.zeros_like(weight, dtype=value.dtype)
    local_part(moment).copy_(value)
    return moment


ROUNDED = {KnownFault.BFLOAT16: torch.bfloat16, KnownFault.FLOAT16: torch.float16}


@contextmanager
def with_fault(module: Any, fault: KnownFault) -> Iterator[None]:
    """Change a module's weights to the weights of a sampler with this fault, and restore them bit for bit.

    Args:
        module: a module that FSDP has sharded. Each rank changes its own shard.
        fault: any fault except `KnownFault.NO_ADAPTER`, for which verl has an option.
    """
    if fault is KnownFault.ADAPTER_TWICE:
        factor = 2.0
        layers = [each for each in module.modules() if hasattr(each, "lora_A") and isinstance(each.scaling, dict)]
        exact = [dict(layer.scaling) for layer in layers]
        for layer in layers:
            layer.scaling.update({name: factor * scale for name, scale in layer.scaling.items()})
        try:
            yield
        finally:
            for layer, scaling in zip(layers, exact, strict=True):
                layer.scaling.update(scaling)
        return
    weights = [local_part(weight).data for _, weight in trained_weights(module)]
    copies = [weight.clone() for weight in weights]
    for weight in weights:
        weight.copy_(weight.to(ROUNDED[fault]))
    try:
        yield
    finally:
        for weight, copy in zip(weights, copies, strict=True):
            weight.copy_(copy)


class TrainingWorker(TinkerActorRolloutRefWorker):  # type: ignore[misc]  # verl is not typed
    """One training rank. Its own checkpoints support only models that FSDP2 has sharded."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        super().init_model()
        name_socket(self.rollout, ray.get_runtime_context().get_job_id())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_shard(self, directory: str) -> None:
        engine = self.actor.engine
        Path(directory).mkdir(parents=True, exist_ok=True)
        states = {name: state for name, state in _random().items() if isinstance(state, torch.Tensor)}
        with engine.train_mode(zero_grad_on_exit=False):
            save_shard(self._file(directory), engine.module, engine.optimizer, states)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_shard(self, directory: str) -> None:
        """Load the shard that `save_shard` wrote.

        Raises:
            CheckpointError: the shard is missing (for example if machines do not share the directory), or it belongs to
                a different model.
        """
        file = self._file(directory)
        if not file.is_file():
            raise CheckpointError(
                "checkpoint-not-shared",
                f"{file} does not exist on the machine of worker {self.rank}.",
                "Set rllm.trainer.output_dir to a directory that all machines share.",
            )
        engine = self.actor.engine
        # In this mode all tensors are on the training device, even if they are offloaded between steps.
        with engine.train_mode(zero_grad_on_exit=False):
            random = load_shard(file, engine.module, engine.optimizer)
        BaseCheckpointManager.load_rng_state(_random() | random)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def apply_fault(self, fault: KnownFault) -> None:
        """Change the weights until `remove_fault`, see `rllm_verl.worker_group`."""
        self._fault = ExitStack()
        with torch.no_grad():
            self._fault.enter_context(with_fault(self.actor.engine.module, fault))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def remove_fault(self) -> None:
        with torch.no_grad():
            self._fault.close()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def digest_weights(self, dtype: str) -> dict[str, str]:
        """Return the digests of the weights that verl sends to servers, in a server's type. Empty for an adapter."""
        tensors, adapter = self.actor.engine.get_per_tensor_param(base_sync_done=True)
        if adapter is not None:
            return {}
        # All ranks read all weights, because each is gathered from all ranks.
        digests = {name: digest(tensor.to(getattr(torch, dtype))) if not self.rank else "" for name, tensor in tensors}
        return {} if self.rank else digests

    def _file(self, directory: str) -> Path:
        return Path(directory) / f"rank_{self.rank}.safetensors"


def _random() -> dict[str, object]:
    """Return the states of this process's random generators. torch's generators are listed by device."""
    states: dict[str, object] = BaseCheckpointManager.get_rng_state()
    return states


if TYPE_CHECKING:
    from rllm_verl.cluster import RequiredGpus

GROUPS_PER_GPU = 1
"""One process contains training, the reference model and the sender of weights."""


class WorkerGroup:
    """verl's workers as `rllm_verl.rows.Workers`. Every call blocks until all workers are done."""

    def __init__(self, config: Any, required: RequiredGpus, *, device: str, with_reference: bool) -> None:
        """Start the processes without waiting for them. Call `wait` next.

        Args:
            config: verl's section ``actor_rollout_ref`` for the workers (DictConfig).
            required: the run's GPUs.
            device: ``trainer.device``.
            with_reference: True to keep a frozen copy of the model for reference log-probs.
        """
        role = "actor_rollout_ref" if with_reference else "actor_rollout"
        name = f"rllm-{uuid.uuid4().hex[:12]}"  # runs may share a cluster
        pools = ResourcePoolManager({name: [required.per_node] * required.nodes}, {role: name}, GROUPS_PER_GPU)
        pools.create_resource_pool()
        self.pool = pools.get_resource_pool(role)
        self._started = False
        self.group = RayWorkerGroup(
            resource_pool=self.pool,
            ray_cls_with_init=RayClassWithInitArgs(ray.remote(TrainingWorker), config=config, role=role),
            device_name=device,
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
        return _wait_for_result(self.group.compute_log_prob(data))

    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        return _wait_for_result(self.group.compute_ref_log_prob(data))

    @contextmanager
    def with_fault(self, fault: KnownFault) -> Iterator[None]:
        self.group.apply_fault(fault)
        try:
            yield
        finally:
            self.group.remove_fault()

    def digests(self, dtype: str) -> dict[str, str]:
        """Return the digests of the weights that the workers send to the servers, see `TrainingWorker`."""
        first: dict[str, str] = self.group.digest_weights(dtype)[0]
        return first

    def optimizer_zero_grad(self) -> None:
        self.group.optimizer_zero_grad()

    def forward_backward(self, data: TensorDict) -> TensorDict:
        return _wait_for_result(self.group.forward_backward(data))

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


def _wait_for_result(answer: Any) -> TensorDict:
    """Return the result. Calls that do not block return a future, which is awaited here."""
    return answer if isinstance(answer, TensorDict) else answer.get()
