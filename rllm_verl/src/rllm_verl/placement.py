"""Placement of rollout servers: on the training GPUs, alternately with training, or on separate GPUs
(``rollout.nnodes``)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.backend import DerivedKey
from rllm_core.errors import ConfigError
from rllm_verl.keys import LORA_RANK
from rllm_verl.settings import ROLLOUT, VerlConfig

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

NODES = f"{ROLLOUT}.nnodes"
PER_NODE = f"{ROLLOUT}.n_gpus_per_node"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
TRANSFER = f"{ROLLOUT}.checkpoint_engine.backend"
CPU, CUDA = "cpu", "cuda"
ON_SHARED_GPUS, BY_RAY, BY_NCCL = "naive", "rllm_ray", "nccl"
"""Weight transfer to the servers: in the training process, through Ray without a GPU, or through NCCL."""
MERGE = "actor_rollout_ref.model.lora.merge"


def is_disaggregated(native: Any) -> bool:
    """Return True if the servers have separate GPUs. `native` is verl's whole configuration."""
    return bool(native["actor_rollout_ref"]["rollout"]["nnodes"])


def num_rollout_gpus(native: Any) -> int:
    """Return the number of GPUs that only rollout servers use."""
    rollout = native["actor_rollout_ref"]["rollout"]
    return int(rollout["nnodes"]) * int(rollout["n_gpus_per_node"])


def _transfer(nodes: int, device: str) -> str:
    if not nodes:
        return ON_SHARED_GPUS
    return BY_RAY if device == CPU else BY_NCCL


def _gpus_of_ray(device: str, per_node: int, nodes: int, per_node_apart: int, nodes_apart: int) -> int | None:
    return per_node * nodes + per_node_apart * nodes_apart if device == CPU else None


DERIVED_TRANSFER = DerivedKey(native=TRANSFER, of=(NODES, "trainer.device"), derive=_transfer)
DERIVED_NUM_GPUS = DerivedKey(
    native="ray_kwargs.ray_init.num_gpus",
    of=("trainer.device", "trainer.n_gpus_per_node", "trainer.nnodes", PER_NODE, NODES),
    derive=_gpus_of_ray,
)
"""On a CPU, Ray counts training processes as GPUs. With GPUs, Ray detects their number itself (null)."""


def check_placement(native: dict[str, Any]) -> None:
    """Raise ConfigError if servers cannot run on their GPUs or cannot receive weights there."""
    rollout = native["actor_rollout_ref"]["rollout"]
    _check_count(NODES, rollout["nnodes"], least=0)
    if is_disaggregated(native):
        _check_count(PER_NODE, rollout["n_gpus_per_node"], least=1)
        _check_transfer_to_others(native)
        _check_split(rollout, num_rollout_gpus(native), f"{NODES} times {PER_NODE}")
        _check_lora_merge(native)
        return
    if rollout["checkpoint_engine"]["backend"] != ON_SHARED_GPUS:
        raise ConfigError(
            "unsupported-weight-transfer",
            f"`{TRANSFER}` is {rollout['checkpoint_engine']['backend']}, which is for rollout servers on separate "
            "GPUs, but in this run they share the training GPUs.",
            f"Remove {TRANSFER}, or set {NODES} to the number of nodes for rollout servers.",
        )
    trainer = native["trainer"]
    gpus = trainer["n_gpus_per_node"] * trainer["nnodes"]
    _check_split(rollout, gpus, "trainer.nnodes times trainer.n_gpus_per_node")


def check_overlap(run: RunConfig, config: VerlConfig) -> None:
    """Raise ConfigError if an asynchronous run needs samples from servers that sleep during training."""
    staleness = run.rllm.async_training.staleness
    if not staleness or run.rllm.trainer.val_only or is_disaggregated(config.native()):
        return
    raise ConfigError(
        "no-overlap",
        f"`rllm.async_training.staleness_threshold` is {staleness}, but `{NODES}` is 0: rollout servers share the "
        "training GPUs and sleep during updates.",
        f"Set {NODES}=1 to give rollout servers {PER_NODE} separate GPUs, or remove rllm.async_training.",
    )


def _check_count(key: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigError("wrong-value", f"`{key}` is {value}: expected a whole number of at least {least}.")


def _check_transfer_to_others(native: dict[str, Any]) -> None:
    transfer = native["actor_rollout_ref"]["rollout"]["checkpoint_engine"]["backend"]
    without_gpu = native["trainer"]["device"] == CPU
    if transfer == ON_SHARED_GPUS or without_gpu != (transfer == BY_RAY):
        where = "in a separate process" if without_gpu else "on separate GPUs"
        raise ConfigError(
            "unsupported-weight-transfer",
            f"`{TRANSFER}` is {transfer}, which cannot send weights to rollout servers {where} (`{NODES}` is above 0).",
            f"Remove {TRANSFER}. It is derived from {NODES}.",
        )
    if transfer == BY_NCCL and native["trainer"]["device"] == CUDA and find_spec("cupy") is None:
        raise ConfigError(
            "missing-package",
            f"`{TRANSFER}` is {transfer}, but cupy is not installed. verl needs it to send weights.",
            "Install the build for torch's CUDA version: pip install cupy-cuda13x, or cupy-cuda12x.",
        )


def _check_split(rollout: dict[str, Any], gpus: int, factors: str) -> None:
    if gpus % (size := rollout["tensor_model_parallel_size"]):
        raise ConfigError(
            "unsupported-parallelism",
            f"`{TENSOR_PARALLEL}` is {size}, but the run has {gpus} GPUs ({factors}) for rollout servers.",
            f"Set {TENSOR_PARALLEL} to a number that divides {gpus}.",
        )


def _check_lora_merge(native: dict[str, Any]) -> None:
    model = native["actor_rollout_ref"]["model"]
    if model["lora_rank"] and not model["lora"]["merge"]:
        raise ConfigError(
            "lora-needs-merge",
            f"`{LORA_RANK}` is {model['lora_rank']}, but verl cannot send an adapter to rollout servers on separate "
            "GPUs.",
            f"Set {MERGE}=true to merge the weights before they are sent.",
        )
