"""The backend's part of a checkpoint: a shard per process, a Hugging Face model directory, and the run's name.

The shards can be joined into a directory for transformers or peft.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rllm_core.errors import CheckpointError

SHARDS = "shards"
"""Directory with one file per process for its part of the weights and the optimizer, and verl's other files."""
MODEL = "model"
"""A Hugging Face model directory. `--model` accepts it with every backend."""
MADE_BY = "made_by.json"
VERL_MODEL = "huggingface"
"""verl's directory next to the shards with the model's configuration and tokenizer, and its weights on request."""
_SAMPLE = 1 << 20


@dataclass(frozen=True)
class CheckpointMetadata:
    """The values that must be the same to resume from a checkpoint."""

    model: str
    """Digest of the model with which the run started."""
    workers: int
    strategy: str
    verl: str
    base: str
    """The name of that model: `tiny`, an absolute path, or a hub id."""
    seed: int
    """Seed for the weights of `tiny`."""
    lora_rank: int
    """LoRA rank. 0 if all weights are trained."""


def write_metadata(directory: Path, made_by: CheckpointMetadata) -> None:
    (directory / MADE_BY).write_text(json.dumps(asdict(made_by), indent=2) + "\n", encoding="utf-8")


def move_model(directory: Path) -> None:
    """Move the model that verl saved among its shards to the directory in which other backends search for a model.

    Do nothing if verl saved the model without its weights, which is verl's default.
    """
    saved = directory / SHARDS / VERL_MODEL
    if any(saved.glob("*.safetensors")):
        saved.rename(directory / MODEL)


def read_metadata(directory: Path) -> CheckpointMetadata:
    """Return the run values stored in a checkpoint. Raise CheckpointError if the backend verl did not write it."""
    try:
        return CheckpointMetadata(**json.loads((directory / MADE_BY).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            "checkpoint-of-other-backend",
            f"{directory} was not written by the backend verl.",
            "Resume with the same backend with which you started the run, or start a new run with "
            f"actor_rollout_ref.model.path={directory.parent}.",
        ) from error


def check_metadata(directory: Path, now: CheckpointMetadata) -> None:
    """Raise CheckpointError if this run cannot resume from a checkpoint."""
    then = read_metadata(directory)
    if then.model != now.model:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} belongs to a run with a different model than the current actor_rollout_ref.model.path.",
            "Resume with the same model with which you started the run, because its weights are also the reference.",
        )
    if (then.workers, then.strategy) != (now.workers, now.strategy):
        raise CheckpointError(
            "run-changed",
            f"{directory} was written by {then.workers} workers with strategy {then.strategy}, but this run has "
            f"{now.workers} with {now.strategy}. verl can load its shards only with the same number and strategy.",
            "Resume with the same trainer.nnodes, trainer.n_gpus_per_node and strategy as before, or start a new run "
            f"with actor_rollout_ref.model.path={directory.parent}.",
        )
    if then.lora_rank != now.lora_rank:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} was written with actor_rollout_ref.model.lora_rank={then.lora_rank}, but this run has "
            f"{now.lora_rank}, so it trains different weights.",
            f"Resume with that rank, or start a new run with actor_rollout_ref.model.path={directory.parent}.",
        )


def check_resumable(directory: Path, *, workers: int, strategy: str, model: str | None, lora_rank: int) -> None:
    """Raise CheckpointError if the run cannot resume from a checkpoint. Check only values that are available early.

    Args:
        directory: the backend's directory in the checkpoint.
        workers: number of workers of the new run.
        strategy: ``actor_rollout_ref.actor.strategy`` of the new run.
        model: digest of the new run's model. None if it is not available yet.
        lora_rank: the same as in `CheckpointMetadata`.
    """
    then = read_metadata(directory)
    now = replace(then, workers=workers, strategy=strategy, lora_rank=lora_rank)
    check_metadata(directory, now if model is None else replace(now, model=model))


def model_digest(directory: Path) -> str:
    """Return a SHA-256 over a model's configuration and over the size, first and last megabyte of each weight file.

    A model can have hundreds of gigabytes, which would take too long to read at every start. So two files with the same
    size and the same first and last megabytes are treated as equal.
    """
    digest = hashlib.sha256(json.dumps(_plain_config(directory), sort_keys=True).encode())
    for file in sorted((*directory.glob("*.safetensors"), *directory.glob("*.bin"))):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(_SAMPLE))
            opened.seek(max(0, size - _SAMPLE))
            digest.update(opened.read())
    return digest.hexdigest()


def _plain_config(directory: Path) -> dict[str, Any]:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    # These keys depend on the transformers version that saved the directory.
    return {name: value for name, value in config.items() if name not in ("transformers_version", "_name_or_path")}


WEIGHT, OF_ONE_ADAPTER = "weight/", ".default."
LORA = "lora_train_meta.json"
"""verl's file that describes an adapter."""


def has_only_shards(checkpoint: Path) -> bool:
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
    made_by, shards = read_metadata(directory), directory / SHARDS
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
