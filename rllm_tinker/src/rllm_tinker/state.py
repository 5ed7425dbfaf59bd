"""Saved weights: where the service keeps the weights of a checkpoint, and whether they fit the configuration."""

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
    """Compare with the configuration, whose LoRA keys do not matter while they have their defaults.

    Raises:
        ConfigError: the weights are of another base model, or of another LoRA than was asked for.
    """
    if saved.base_model != base_model:
        raise ConfigError(
            "checkpoint-of-other-model",
            f"{path} was trained on base model {saved.base_model!r}, and model.name is {base_model!r}.",
            f"Set model.name={saved.base_model}.",
        )
    for name in FLAGS:
        asked, has = getattr(model, name), getattr(saved, name)
        if has is not None and asked != has and asked != type(model).model_fields[name].default:
            raise ConfigError(
                "adapter-mismatch",
                f"model.{name} is {asked}, and {path} has {has}: a saved LoRA model keeps its shape.",
                f"Leave model.{name} out, or start from the base model.",
            )


FILE = "tinker.json"


class SavedState(BaseModel):
    """The contents of ``tinker.json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    """Weights and optimiser state, ``tinker://RUN/weights/NAME``."""
    base_model: str
    service: str
    """URL of the service that keeps them, or `local`."""
    starts_from_base: bool = True
    """Whether the run started from the base model, and not from weights of its own."""
    kept_in: str | None = None
    """Folder of the local server's files; null: another service keeps them."""
    seed: int = 0
    """Of the run: the weights of the base model `tiny` follow from it."""
    reference: str | None = None
    """Weights of the reference model for sampling; null: there is none, or it is the base model."""


def state_named_by(model_name: str) -> SavedState | None:
    """The state of a run's checkpoint, when ``model.name`` is the folder of one; None when it is a base model.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    directory = Path(model_name).expanduser() / "backend"
    return read_state(directory) if (directory / FILE).is_file() else None


def write_state(directory: Path, state: SavedState) -> None:
    (directory / FILE).write_text(json.dumps(state.model_dump(), indent=1), encoding="utf-8")


def read_state(directory: Path) -> SavedState:
    """Read what `write_state` wrote.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    file = directory / FILE
    try:
        return SavedState.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            "checkpoint-of-other-backend",
            f"{directory} holds no {FILE}: it is not a checkpoint of the tinker backend.",
            "Resume with the backend the run was started with.",
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise CheckpointError(
            "damaged-checkpoint",
            f"{file} is damaged: {why}.",
            f"Delete {directory}: --resume then uses the checkpoint before.",
        ) from error
