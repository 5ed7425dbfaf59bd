"""The backend's part of a checkpoint: a shard per process, a Hugging Face model directory, and the run's name."""

from __future__ import annotations

import hashlib
import json
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
class MadeBy:
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


def write_made_by(directory: Path, made_by: MadeBy) -> None:
    (directory / MADE_BY).write_text(json.dumps(asdict(made_by), indent=2) + "\n", encoding="utf-8")


def move_model(directory: Path) -> None:
    """Move the model that verl saved among its shards to the directory in which other backends search for a model.

    Do nothing if verl saved the model without its weights, which is verl's default.
    """
    saved = directory / SHARDS / VERL_MODEL
    if any(saved.glob("*.safetensors")):
        saved.rename(directory / MODEL)


def read_made_by(directory: Path) -> MadeBy:
    """Return the run values stored in a checkpoint. Raise CheckpointError if the backend verl did not write it."""
    try:
        return MadeBy(**json.loads((directory / MADE_BY).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            "checkpoint-of-other-backend",
            f"{directory} was not written by the backend verl.",
            "Resume with the same backend with which you started the run, or start a new run with "
            f"actor_rollout_ref.model.path={directory.parent}.",
        ) from error


def check_made_by(directory: Path, now: MadeBy) -> None:
    """Raise CheckpointError if this run cannot resume from a checkpoint."""
    then = read_made_by(directory)
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
        lora_rank: the same as in `MadeBy`.
    """
    then = read_made_by(directory)
    now = replace(then, workers=workers, strategy=strategy, lora_rank=lora_rank)
    check_made_by(directory, now if model is None else replace(now, model=model))


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
