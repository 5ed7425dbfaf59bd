"""What a checkpoint holds of the backend: a shard per process, the model as a Hugging Face folder, and who made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rllm_core.errors import CheckpointError

SHARDS = "shards"
"""A file per process with its part of the weights and of the optimiser; and what else verl writes."""
MODEL = "model"
"""A Hugging Face folder, which `--model` of every backend takes."""
MADE_BY = "made_by.json"
VERL_MODEL = "huggingface"
"""Beside the shards: all of a model but its weights."""
_SAMPLE = 1 << 20


@dataclass(frozen=True)
class MadeBy:
    """What must be the same to go on from a checkpoint."""

    model: str
    """Digest of the model that the run started with."""
    workers: int
    strategy: str
    verl: str
    base: str
    """That model's name: `tiny`, an absolute path, or a hub id."""
    seed: int
    """Of the weights of `tiny`."""
    lora_rank: int
    """0: all weights are trained."""


def write_made_by(directory: Path, made_by: MadeBy) -> None:
    (directory / MADE_BY).write_text(json.dumps(asdict(made_by), indent=2) + "\n", encoding="utf-8")


def move_model(directory: Path) -> None:
    """Put the model that verl saved among its shards where other backends look for one.

    Not where verl wrote all of a model but its weights, as it does unless it is asked for them.
    """
    saved = directory / SHARDS / VERL_MODEL
    if any(saved.glob("*.safetensors")):
        saved.rename(directory / MODEL)


def read_made_by(directory: Path) -> MadeBy:
    """Who wrote a checkpoint; raises CheckpointError where the backend verl did not."""
    try:
        return MadeBy(**json.loads((directory / MADE_BY).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            "checkpoint-of-other-backend",
            f"{directory} was not written by the backend verl.",
            "Resume with the backend the run was started with, or start a new run with "
            f"actor_rollout_ref.model.path={directory.parent}.",
        ) from error


def check_made_by(directory: Path, now: MadeBy) -> None:
    """Raise CheckpointError when a checkpoint cannot be gone on from."""
    then = read_made_by(directory)
    if then.model != now.model:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} belongs to a run of another model than actor_rollout_ref.model.path names now.",
            "Resume with the model the run was started with; its weights are the reference, too.",
        )
    if (then.workers, then.strategy) != (now.workers, now.strategy):
        raise CheckpointError(
            "run-changed",
            f"{directory} was written by {then.workers} workers with strategy {then.strategy}; "
            f"this run has {now.workers} "
            f"with {now.strategy}, and verl reads its shards with the same number only.",
            "Resume with trainer.nnodes, trainer.n_gpus_per_node and the strategy as they were, or start a new run "
            f"with actor_rollout_ref.model.path={directory.parent}.",
        )
    if then.lora_rank != now.lora_rank:
        raise CheckpointError(
            "checkpoint-of-other-model",
            f"{directory} was written with actor_rollout_ref.model.lora_rank={then.lora_rank}; this run has "
            f"{now.lora_rank}, and other weights are trained.",
            f"Resume with that rank, or start a new run with actor_rollout_ref.model.path={directory.parent}.",
        )


def check_resumable(directory: Path, *, workers: int, strategy: str, model: str | None, lora_rank: int) -> None:
    """Raise CheckpointError when a checkpoint cannot be gone on from, as far as it shows before anything is started.

    Args:
        folder: the backend's folder in the checkpoint.
        workers: of the run that is about to start.
        strategy: its ``actor_rollout_ref.actor.strategy``.
        model: digest of its model; None: not known yet.
        lora_rank: as in `MadeBy`.
    """
    then = read_made_by(directory)
    now = replace(then, workers=workers, strategy=strategy, lora_rank=lora_rank)
    check_made_by(directory, now if model is None else replace(now, model=model))


def model_digest(directory: Path) -> str:
    """SHA-256 over a model's configuration, and the sizes, beginnings and ends of its weight files.

    A model may have hundreds of gigabytes, which nobody wants to be read at every start. Files of the same sizes whose
    first and last megabytes are the same count as the same.
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
    # Written by whichever version of transformers saved the folder.
    return {name: value for name, value in config.items() if name not in ("transformers_version", "_name_or_path")}
