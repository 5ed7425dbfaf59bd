"""The memory report of `--dry-run`: each GPU's part of the model, during training and while vLLM samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_backend_kit.model_files import model_directory
from rllm_core.contracts.backend import Footprint
from rllm_verl.adapters import find_adapter
from rllm_verl.attention import FSDP
from rllm_verl.logprobs import VLLM
from rllm_verl.placement import is_disaggregated, num_rollout_gpus
from rllm_verl.settings import TINY, VerlConfig

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

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
