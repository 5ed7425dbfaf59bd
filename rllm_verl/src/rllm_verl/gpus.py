"""The GPUs of a run: where rollout servers run, and how much memory each GPU needs (the report of `--dry-run`).

Rollout servers run on the training GPUs, alternately with training, or on separate GPUs (``rollout.nnodes``).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.backend import DerivedKey, Footprint
from rllm_core.errors import ConfigError
from rllm_verl.attention import FSDP
from rllm_verl.keys import LORA_RANK, ROLLOUT, TINY
from rllm_verl.logprobs import VLLM

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig
    from rllm_verl.settings import VerlConfig

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


def _num_ray_gpus(device: str, per_node: int, nodes: int, rollout_per_node: int, rollout_nodes: int) -> int | None:
    return per_node * nodes + rollout_per_node * rollout_nodes if device == CPU else None


DERIVED_TRANSFER = DerivedKey(native=TRANSFER, of=(NODES, "trainer.device"), derive=_transfer)
DERIVED_NUM_GPUS = DerivedKey(
    native="ray_kwargs.ray_init.num_gpus",
    of=("trainer.device", "trainer.n_gpus_per_node", "trainer.nnodes", PER_NODE, NODES),
    derive=_num_ray_gpus,
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


GIB = 1 << 30
SERVER_GPUS = "GPUs with only rollout servers"
BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
MOMENTS = 2


def footprint(settings: VerlConfig, run: RunConfig, needs: frozenset[str]) -> Footprint | None:
    """Estimate a run's memory on each GPU without activations, from config.json and without network requests.

    There is no estimate for `tiny`, which needs very little memory, so that torch is not imported. There is also none
    for strategies other than FSDP.
    """
    role = settings.actor_rollout_ref
    name = role["model"]["path"]
    apart = num_rollout_gpus(settings.native())
    others = ((SERVER_GPUS, str(apart)),) if apart else ()
    if name == TINY or role["actor"]["strategy"] not in FSDP:
        return Footprint(title="GPUs", rows=others) if others else None
    config = _config_of(name)
    if config is None:
        unknown = (f"the config.json of {name!r} is not on this machine, so memory is not estimated.",)
        return Footprint(title="Memory", rows=others, warnings=unknown)
    parts = _parts(config, settings, needs)
    total = sum(parts.values())
    rows = [(part, _gib(size)) for part, size in parts.items()]
    rows += [("together, without activations", _gib(total))]
    share = role["rollout"]["gpu_memory_utilization"]
    if role["rollout"]["name"] == VLLM:
        when = "on its own GPUs" if apart else "while it samples"
        rows.append((f"vLLM's weights and cache, {when}", f"{share:.0%} of a GPU"))
    rows += others
    warnings, available = [], _gpu()
    if available is not None:
        rows.append(("a GPU has", _gib(available)))
        warnings = _list_shortages(parts, settings, available)
    return Footprint(title="Memory of each GPU", rows=tuple(rows), warnings=tuple(warnings))


def _config_of(name: str) -> Any:
    from transformers import AutoConfig

    from rllm_backend_kit.model_files import model_directory
    from rllm_verl.adapters import find_adapter

    path = Path(name).expanduser()
    if (adapter := find_adapter(path)) is not None:
        return None if adapter.base == TINY else _config_of(adapter.base)
    try:
        return AutoConfig.from_pretrained(model_directory(path) or name, local_files_only=True)
    except (OSError, ValueError, KeyError):
        return None


def _parts(config: Any, settings: VerlConfig, needs: frozenset[str]) -> Mapping[str, int]:
    """Return the bytes on each GPU by purpose."""
    role = settings.actor_rollout_ref
    workers = settings.trainer["n_gpus_per_node"] * settings.trainer["nnodes"]
    size = BYTES.get(role["actor"]["fsdp_config"]["model_dtype"], 4)
    of_reference = BYTES.get(role["ref"]["fsdp_config"]["model_dtype"], 4)
    rank = role["model"]["lora_rank"]
    count, of_adapter = _counts(config, rank)
    trained = of_adapter if rank else count
    parts = {
        "weights": (count + of_adapter) * size,
        "gradients": trained * size,
        "AdamW's moments": MOMENTS * trained * size,
        "reference model": count * of_reference if "ref_logprobs" in needs and not rank else 0,
    }
    return {name: -(-part // workers) for name, part in parts.items() if part}


def _counts(config: Any, rank: int) -> tuple[int, int]:
    """Return the number of weights in the model, and in an adapter with this rank on all of its linear layers."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    output = model.get_output_embeddings()
    layers = [each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not output]
    adapter = rank * sum(layer.in_features + layer.out_features for layer in layers)
    return sum(parameter.numel() for parameter in model.parameters()), adapter


def _gpu() -> int | None:
    """Return the memory of this machine's first GPU in bytes. None if it has no GPU."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def _list_shortages(parts: Mapping[str, int], settings: VerlConfig, available: int) -> list[str]:
    role = settings.actor_rollout_ref
    offload = role["actor"]["fsdp_config"]
    found = []
    total = sum(parts.values())
    if total > available:
        found.append(
            f"training needs {_gib(total)} on each GPU, but only {_gib(available)} are available: use more GPUs, or "
            "train an adapter (actor_rollout_ref.model.lora_rank=32)."
        )
    staying = 0 if offload["param_offload"] else parts.get("weights", 0)
    staying += 0 if offload["optimizer_offload"] else parts.get("AdamW's moments", 0)
    share = role["rollout"]["gpu_memory_utilization"]
    shared = role["rollout"]["name"] == VLLM and not is_disaggregated(settings.native())
    if shared and staying + share * available > available:
        found.append(
            f"weights and moments that stay on a GPU while vLLM samples need {_gib(staying)}, and vLLM needs "
            f"{share:.0%} of {_gib(available)}: set optimizer_offload and param_offload in "
            "actor_rollout_ref.actor.fsdp_config, "
            "or lower actor_rollout_ref.rollout.gpu_memory_utilization."
        )
    return found


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / (1 << 20):.1f} MiB"
