"""Joins the shards of a checkpoint's model into a directory for transformers or peft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rllm_core.errors import CheckpointError
from rllm_verl.state import MADE_BY, MODEL, SHARDS, VERL_MODEL, read_made_by

WEIGHT, OF_ONE_ADAPTER = "weight/", ".default."
LORA = "lora_train_meta.json"
"""verl's file that describes an adapter."""


def holds_parts(checkpoint: Path) -> bool:
    """Return True if a path is a checkpoint of the backend verl that contains its model only as shards."""
    directory = checkpoint / "backend"
    return (directory / MADE_BY).is_file() and not (directory / MODEL).is_dir()


def fetch_model(directory: Path, into: Path) -> None:
    """Write the trained weights of all workers as one model: a Hugging Face directory or a peft LoRA adapter.

    Args:
        directory: the backend's directory in a checkpoint.
        into: an empty directory.

    Raises:
        CheckpointError: verl itself wrote the shards (FSDP1, Megatron), a shard is missing, or the shards do not match.
    """
    made_by, shards = read_made_by(directory), directory / SHARDS
    files = [shards / f"rank_{rank}.safetensors" for rank in range(made_by.workers)]
    if not any(file.is_file() for file in files):
        raise CheckpointError(
            "shards-need-merge",
            f"{shards} contains verl's own files (strategy {made_by.strategy}). rllm does not read them, because they "
            "are pickles, which can run code.",
            f"Merge them with verl's command `python -m verl.model_merger merge --local_dir {shards} --target_dir DIR "
            "--backend fsdp` (or megatron), then export DIR.",
        )
    if missing := [file for file in files if not file.is_file()]:
        raise CheckpointError(
            "missing-shards",
            f"{missing[0]} is missing: {made_by.workers} workers wrote this checkpoint.",
            "Copy the shards of all machines into one directory.",
        )
    tensors = _join_shards(files)
    if (shards / LORA).is_file():
        _write_adapter(tensors, json.loads((shards / LORA).read_text(encoding="utf-8")), into)
        base = {"name": made_by.base, "seed": made_by.seed}
        config = into / "adapter_config.json"
        text = json.loads(config.read_text(encoding="utf-8")) | {"base_model_name_or_path": made_by.base}
        config.write_text(json.dumps(text), encoding="utf-8")
        (into / "base.json").write_text(json.dumps(base), encoding="utf-8")
    else:
        _write_whole(tensors, shards / VERL_MODEL, into)


def _join_shards(files: list[Path]) -> dict[str, Any]:
    """Return each weight, joined over all ranks along the first axis, along which FSDP2 splits it."""
    import torch
    from safetensors.torch import load_file

    parts = [load_file(file) for file in files]
    names = [name for name in parts[0] if name.startswith(WEIGHT)]
    return {name.removeprefix(WEIGHT): torch.cat([part[name] for part in parts]) for name in names}


def _write_adapter(tensors: dict[str, Any], meta: dict[str, Any], into: Path) -> None:
    import peft
    from safetensors.torch import save_file

    rows = {tensor.shape[0] for name, tensor in tensors.items() if ".lora_A." in name}
    if rows != {meta["r"]}:
        raise CheckpointError(
            "missing-shards",
            f"The adapter's joined shards have {sorted(rows)} rows, but its rank is {meta['r']}.",
            "Only shards of a run with fsdp_config.fsdp_size=-1 can be joined.",
        )
    save_file(
        {name.replace(OF_ONE_ADAPTER, "."): each for name, each in tensors.items()}, into / "adapter_model.safetensors"
    )
    layers = {name.partition(".lora_")[0].removeprefix("base_model.model.") for name in tensors}
    settings = {name: meta[name] for name in ("r", "lora_alpha", "task_type")}
    peft.LoraConfig(**settings, target_modules=sorted(layers), inference_mode=True).save_pretrained(str(into))


def _write_whole(tensors: dict[str, Any], files: Path, into: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoConfig

    shutil.copytree(files, into, dirs_exist_ok=True)
    rows = AutoConfig.from_pretrained(files).get_text_config().vocab_size
    found = {tensor.shape[0] for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")}
    if found - {rows}:
        raise CheckpointError(
            "missing-shards",
            f"The embedding's joined shards have {sorted(found)} rows, but the model has {rows}.",
            "Only shards of a run with fsdp_config.fsdp_size=-1 can be joined.",
        )
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
