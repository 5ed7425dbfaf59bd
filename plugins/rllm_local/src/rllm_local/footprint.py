"""The memory report of `--dry-run`: the estimate, the device's memory, and keys that reduce the estimate."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.backend import Footprint
from rllm_local.adapter_files import adapter_directory, read_base
from rllm_local.model_name import TINY, directory_of
from rllm_local.settings import LocalConfig

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig

GIB = 1 << 30
CPU = "cpu"
SHARED = "weights between the processes"
CGROUP = Path("/sys/fs/cgroup/memory.max")


def footprint(settings: LocalConfig, run: RunConfig, needs: frozenset[str]) -> Footprint | None:
    """Estimate a run's memory from the model's config.json, without its weights and without network requests.

    Return None for `tiny`, which needs very little memory, so that torch is not imported.
    """
    if settings.model.name == TINY:
        return None
    config = _config_of(settings.model.name)
    if config is None:
        return _unknown(f"the config.json of {settings.model.name!r} is not on this machine")
    device, available = _device(settings.model.device)
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.disabled = True  # it prints a traceback
    try:
        parts = _parts(config, settings, run, needs, device)
    except RuntimeError:
        # The estimate runs the model on tensors without data. Most mixtures of experts have an operation that does not
        # support such tensors.
        return _unknown(f"a model of type {config.model_type!r} cannot run on tensors without data")
    finally:
        log.disabled = False
    total = sum(parts.values())
    rows = [(name, _gib(size)) for name, size in parts.items()]
    rows += [("together", _gib(total)), (f"{'this machine' if device == CPU else device} has", _gib(available))]
    return Footprint(
        title="Memory of two processes, at most" if SHARED in parts else "Memory, at most",
        rows=tuple(rows),
        warnings=(_does_not_fit(parts, total, available, settings),) if total > available else (),
    )


def _unknown(reason: str) -> Footprint:
    return Footprint(title="Memory", rows=(), warnings=(f"{reason}, so memory is not estimated.",))


def _config_of(name: str) -> Any:
    from transformers import AutoConfig

    adapter = adapter_directory(name)
    if adapter is not None:
        return _config_of(read_base(adapter).name)
    if name == TINY:
        from rllm_local import tiny

        return tiny.build_model(len(tiny.build_tokenizer()), 0).config
    try:
        return AutoConfig.from_pretrained(directory_of(name) or name, local_files_only=True)
    except (OSError, ValueError, KeyError):
        return None


def _parts(config: Any, settings: LocalConfig, run: RunConfig, needs: frozenset[str], device: str) -> Mapping[str, int]:
    from rllm_local.memory import Load, memory_parts

    rows = run.data.train_batch_size * run.rllm.rollout.n
    longest = min(settings.training.max_length, int(getattr(config, "max_position_embeddings", 0) or 1 << 40))
    tokens = min(settings.training.tokens_per_microbatch(device), rows * longest)
    hosted = run.rllm.rollout.engine is not None
    scores = "scores" in needs  # A classifier has one output, and does not sample.
    ahead = run.rllm.async_training
    apart = ahead.staleness > 0 and not hosted and settings.local.training_process
    load = Load(
        micro_batch_tokens=tokens,
        sampled_tokens=0 if scores else tokens,
        cached_tokens=0 if hosted or scores else min(settings.local.max_concurrency, rows) * longest,
        reference="ref_logprobs" in needs,
        critic="values" in needs,
        longest_row=min(tokens, longest),
        copies=1 + ahead.staleness if ahead.pins_weights else int(apart),
        apart=apart,
        exact=device == CPU,
    )
    return memory_parts(config, settings, load)


def _device(name: str) -> tuple[str, int]:
    """Return the run's device and its memory in bytes."""
    import torch

    from rllm_local.model import find_device

    device = find_device(name)
    if device.type == "cuda":
        return str(device), int(torch.cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CGROUP.read_text(encoding="utf-8").strip() if CGROUP.is_file() else "max"
    return CPU, min(machine, int(limit)) if limit.isdigit() else machine


def _does_not_fit(parts: Mapping[str, int], total: int, available: int, settings: LocalConfig) -> str:
    """Return a warning with the keys that reduce memory, ordered by the size of the part that they reduce."""
    per_token = ["lower training.max_tokens_per_microbatch"]
    if not settings.training.gradient_checkpointing:
        per_token.insert(0, "set training.gradient_checkpointing=true")
    trained = [] if settings.model.lora_rank else ["train an adapter (model.lora_rank=32)"]
    rough = [] if settings.model.dtype == "bfloat16" else ["set model.dtype=bfloat16"]
    helps = {
        "weights": [*rough, *trained],
        "float32 weights that are trained": trained,
        "weights that sample": ["lower rllm.async_training.staleness_threshold", *rough],
        SHARED: ["set local.training_process=false", *rough],
        "reference model": trained,
        "AdamW's moments": trained,
        "gradients": trained,
        "gradient of the output layer": trained,
        "gradients of the critic": trained,
        "activations": per_token,
        "logits": ["lower training.max_tokens_per_microbatch"],
        "attention masks": ["lower training.max_tokens_per_microbatch"],
        "cached keys and values": ["lower local.kv_cache_gib"],
    }
    keys: dict[str, None] = {}
    for name in sorted(parts, key=lambda name: -parts[name]):
        keys.update(dict.fromkeys(helps[name]))
    return f"the run may need {_gib(total)}, but only {_gib(available)} are available: {', or '.join(keys)}."


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / (1 << 20):.1f} MiB"
