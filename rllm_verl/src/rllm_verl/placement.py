"""Where rollout servers run: in turn with training on its GPUs, or on GPUs of their own (``rollout.nnodes``)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from rllm_core.contracts.backend import DerivedKey
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_verl.settings import VerlConfig
from rllm_verl.shared_keys import LORA_RANK, ROLLOUT

NODES = f"{ROLLOUT}.nnodes"
PER_NODE = f"{ROLLOUT}.n_gpus_per_node"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
TRANSFER = f"{ROLLOUT}.checkpoint_engine.backend"
CPU, CUDA = "cpu", "cuda"
ON_SHARED_GPUS, BY_RAY, BY_NCCL = "naive", "rllm_ray", "nccl"
"""How weights reach servers: in the process that trains; as messages of Ray, without a GPU; by NCCL."""
MERGE = "actor_rollout_ref.model.lora.merge"


def servers_apart(native: Any) -> bool:
    """Whether servers have GPUs of their own; `native` is verl's whole configuration."""
    return bool(native["actor_rollout_ref"]["rollout"]["nnodes"])


def gpus_apart(native: Any) -> int:
    """GPUs that rollout servers have for themselves."""
    rollout = native["actor_rollout_ref"]["rollout"]
    return int(rollout["nnodes"]) * int(rollout["n_gpus_per_node"])


def _transfer(nodes: int, device: str) -> str:
    if not nodes:
        return ON_SHARED_GPUS
    return BY_RAY if device == CPU else BY_NCCL


def _gpus_of_ray(device: str, per_node: int, nodes: int, per_node_apart: int, nodes_apart: int) -> int | None:
    return per_node * nodes + per_node_apart * nodes_apart if device == CPU else None


TRANSFER_FOLLOWS = DerivedKey(native=TRANSFER, of=(NODES, "trainer.device"), derive=_transfer)
RAYS_GPUS_FOLLOW = DerivedKey(
    native="ray_kwargs.ray_init.num_gpus",
    of=("trainer.device", "trainer.n_gpus_per_node", "trainer.nnodes", PER_NODE, NODES),
    derive=_gpus_of_ray,
)
"""Without a GPU Ray counts processes; with some it counts them itself."""


def check_placement(native: dict[str, Any]) -> None:
    """Raise ConfigError for servers that cannot run where they are to run, or that weights cannot reach."""
    rollout = native["actor_rollout_ref"]["rollout"]
    _check_count(NODES, rollout["nnodes"], least=0)
    if servers_apart(native):
        _check_count(PER_NODE, rollout["n_gpus_per_node"], least=1)
        _check_transfer_to_others(native)
        _check_split(rollout, gpus_apart(native), f"{NODES} times {PER_NODE}")
        _check_merged(native)
        return
    if rollout["checkpoint_engine"]["backend"] != ON_SHARED_GPUS:
        raise ConfigError(
            "unsupported-weight-transfer",
            f"`{TRANSFER}` is {rollout['checkpoint_engine']['backend']}, which is for rollout servers on GPUs of their "
            "own; here they share those that train.",
            f"Leave it out, or set {NODES} to the nodes of such servers.",
        )
    trainer = native["trainer"]
    gpus = trainer["n_gpus_per_node"] * trainer["nnodes"]
    _check_split(rollout, gpus, "trainer.nnodes times trainer.n_gpus_per_node")


def check_overlap(run: RunConfig, config: VerlConfig) -> None:
    """Raise ConfigError where servers that sleep while workers train are to sample then."""
    staleness = run.rllm.async_training.staleness
    if not staleness or run.rllm.trainer.val_only or servers_apart(config.native()):
        return
    raise ConfigError(
        "no-overlap",
        f"`rllm.async_training.staleness_threshold` is {staleness}, and `{NODES}` is 0: rollout servers share the GPUs "
        "that train, and sleep while weights are updated.",
        f"Set {NODES}=1: its {PER_NODE} are GPUs of their own for rollout servers. Or leave rllm.async_training out.",
    )


def _check_count(key: str, value: Any, *, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ConfigError("wrong-value", f"`{key}` is {value}: expected a whole number of at least {least}.")


def _check_transfer_to_others(native: dict[str, Any]) -> None:
    transfer = native["actor_rollout_ref"]["rollout"]["checkpoint_engine"]["backend"]
    without_gpu = native["trainer"]["device"] == CPU
    if transfer == ON_SHARED_GPUS or without_gpu != (transfer == BY_RAY):
        where = "on another process" if without_gpu else "on other GPUs"
        raise ConfigError(
            "unsupported-weight-transfer",
            f"`{TRANSFER}` is {transfer}, which brings no weights to rollout servers {where} (`{NODES}` is above 0).",
            f"Leave it out: it follows from {NODES}.",
        )
    if transfer == BY_NCCL and native["trainer"]["device"] == CUDA and find_spec("cupy") is None:
        raise ConfigError(
            "missing-package",
            f"`{TRANSFER}` is {transfer}, and cupy is not installed, which verl sends weights with.",
            "pip install cupy-cuda13x, or cupy-cuda12x, as torch's CUDA is.",
        )


def _check_split(rollout: dict[str, Any], gpus: int, factors: str) -> None:
    if gpus % (size := rollout["tensor_model_parallel_size"]):
        raise ConfigError(
            "unsupported-parallelism",
            f"`{TENSOR_PARALLEL}` is {size}, and the run has {gpus} GPUs ({factors}) for rollout servers.",
            "Choose a number that divides them.",
        )


def _check_merged(native: dict[str, Any]) -> None:
    model = native["actor_rollout_ref"]["model"]
    if model["lora_rank"] and not model["lora"]["merge"]:
        raise ConfigError(
            "lora-needs-merge",
            f"`{LORA_RANK}` is {model['lora_rank']}, and verl sends no adapter to rollout servers on their own GPUs.",
            f"Set {MERGE}=true: weights are merged before they are sent.",
        )
