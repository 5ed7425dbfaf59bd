"""Saved weights: their location in the service, and the check that they match the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from rllm_core.errors import CheckpointError, ConfigError
from rllm_tinker.settings import ModelSection

if TYPE_CHECKING:
    from rllm_tinker.exchange import SavedModel

FLAGS = ("lora_rank", "train_unembed", "train_attn", "train_mlp")


def check_saved_model(saved: SavedModel, path: str, model: ModelSection, base_model: str) -> None:
    """Check that saved weights match the configuration. LoRA keys with their default values are not compared.

    Raises:
        ConfigError: the weights have a different base model or a different LoRA shape.
    """
    if saved.base_model != base_model:
        raise ConfigError(
            "checkpoint-of-other-model",
            f"{path} was trained on base model {saved.base_model!r}, but model.name is {base_model!r}.",
            f"Set model.name={saved.base_model}.",
        )
    for name in FLAGS:
        asked, has = getattr(model, name), getattr(saved, name)
        if has is not None and asked != has and asked != type(model).model_fields[name].default:
            raise ConfigError(
                "adapter-mismatch",
                f"model.{name} is {asked}, but {path} has {has}. The shape of a saved LoRA model cannot change.",
                f"Remove model.{name}, or start from the base model.",
            )


FILE = "tinker.json"


class SavedState(BaseModel):
    """The contents of ``tinker.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    path: str
    """Weights and optimizer state, ``tinker://RUN/weights/NAME``."""
    base_model: str
    service: str
    """URL of the service that stores the weights, or `local`."""
    starts_from_base: bool = True
    """True if the run started from the base model. False if it started from saved weights."""
    kept_in: str | None = None
    """Directory of the local server's files. Null if a different service stores the weights."""
    seed: int = 0
    """The run's seed. It determines the weights of the base model `tiny`."""
    reference: str | None = None
    """Weights of the reference model for sampling. Null if the run has no reference or it is the base model."""


def state_named_by(model_name: str) -> SavedState | None:
    """Return the state of a run's checkpoint if ``model.name`` is a checkpoint directory. None if it is a base model.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    directory = Path(model_name).expanduser() / "backend"
    return read_state(directory) if (directory / FILE).is_file() else None


def write_state(directory: Path, state: SavedState) -> None:
    (directory / FILE).write_text(json.dumps(state.model_dump(), indent=1), encoding="utf-8")


def read_state(directory: Path) -> SavedState:
    """Read the state that `write_state` wrote.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    file = directory / FILE
    try:
        return SavedState.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            "checkpoint-of-other-backend",
            f"{directory} contains no {FILE}, so it is not a checkpoint of the tinker backend.",
            "Resume with the same backend with which you started the run.",
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise CheckpointError(
            "damaged-checkpoint",
            f"{file} is damaged: {why}.",
            f"Delete {directory}. Then --resume uses the previous checkpoint.",
        ) from error
