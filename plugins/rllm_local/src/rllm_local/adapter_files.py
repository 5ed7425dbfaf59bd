"""A LoRA adapter on disk: a folder as peft writes it, and beside it which base model it was trained on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rllm_core.errors import ConfigError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base.json"


@dataclass(frozen=True)
class BaseModel:
    """The model below an adapter."""

    name: str
    """`tiny`, an absolute path, or a hub id."""
    seed: int = 0
    """Of the weights of `tiny`."""
    dtype: str | None = None
    """Type of the weights that `sha256` is of; None: unknown."""
    sha256: str | None = None
    """See `rllm_local.fingerprints.fingerprint`; None: unknown."""


def adapter_directory(name: str) -> Path | None:
    """The folder of the adapter that a model's name stands for: itself, or the model inside a run's checkpoint."""
    path = Path(name).expanduser()
    for directory in (path, path / "backend" / "model"):
        if (directory / CONFIG).is_file() and not (directory / "config.json").is_file():
            return directory
    return None


def read_base(directory: Path) -> BaseModel:
    """The model below the adapter in `directory`. Adapters of other programs do not know its weights.

    Raises:
        ConfigError: the files do not say which model it is.
    """
    try:
        name = json.loads((directory / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
        if not isinstance(name, str):
            raise KeyError("base_model_name_or_path")
        file = directory / BASE
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return BaseModel(**(known | {"name": name}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "bad-adapter",
            f"model.name={str(directory)!r} is a LoRA adapter that does not say which model it belongs to ({error!r}).",
            f"Set base_model_name_or_path in its {CONFIG}.",
        ) from error


def write_base(directory: Path, base: BaseModel) -> None:
    """Write what `read_base` reads."""
    (directory / BASE).write_text(json.dumps(asdict(base)), encoding="utf-8")
