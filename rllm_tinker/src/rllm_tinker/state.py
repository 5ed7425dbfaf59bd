"""Saved weights: their location in the service, the check that they match the configuration, and their export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from rllm_core.errors import CheckpointError, ConfigError, PluginError
from rllm_core.seeding import derive_seed
from rllm_tinker.settings import LOCAL, ModelSection

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
        wanted, has = getattr(model, name), getattr(saved, name)
        if has is not None and wanted != has and wanted != type(model).model_fields[name].default:
            raise ConfigError(
                "adapter-mismatch",
                f"model.{name} is {wanted}, but {path} has {has}. The shape of a saved LoRA model cannot change.",
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


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RECORD = "model.json"
"""The file in which the local server describes a model, next to peft's files."""


def fetch_model(directory: Path, into: Path) -> None:
    """Copy the adapter files that a run's local server stored.

    Args:
        directory: the backend's directory in a checkpoint.
        into: an empty directory. It receives peft's two files, and ``base.json``, which describes the base weights for
            `rllm-local`.

    Raises:
        CheckpointError: a different service stores the weights, or the local server's files are missing.
        PluginError: the local server is not installed.
    """
    state = read_state(directory)
    if state.service != LOCAL or state.kept_in is None:
        raise CheckpointError(
            "weights-at-service",
            f"{state.service} stores the weights of {directory}: {state.path}.",
            f"Download the adapter with the service's command `tinker checkpoint download {state.path}`, then export "
            "the downloaded directory.",
        )
    kept = _find_checkpoint_path(state, Path(state.kept_in))
    try:
        config = json.loads((kept / CONFIG).read_text(encoding="utf-8"))
        base = json.loads((kept / RECORD).read_text(encoding="utf-8"))["base_model"]
        shutil.copyfile(kept / WEIGHTS, into / WEIGHTS)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            "file-unreadable",
            f"{directory} refers to {state.path}, but its files in {kept} cannot be read: {error}.",
            "Copy that directory back (training.default_local_dir), or pass the path of a different checkpoint.",
        ) from error
    name = str(Path(base["name"]).absolute()) if Path(base["name"]).is_dir() else base["name"]
    (into / CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": name}), encoding="utf-8")
    # A run's local server computes in float32.
    known = {"name": name, "seed": derive_seed(state.seed, "model"), "dtype": "float32", "sha256": base["sha256"]}
    (into / "base.json").write_text(json.dumps(known), encoding="utf-8")


def _find_checkpoint_path(state: SavedState, root: Path) -> Path:
    try:
        from rllm_tinker_server.checkpoints import TinkerPath
    except ImportError as error:
        raise PluginError(
            "missing-package",
            "These files belong to the local Tinker server, which is not installed.",
            "pip install 'rllm-tinker[local]'",
        ) from error
    return TinkerPath.parse(state.path).below(root)
