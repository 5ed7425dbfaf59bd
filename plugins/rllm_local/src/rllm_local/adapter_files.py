"""A LoRA adapter on disk: a directory in peft's format, with an additional file that describes its base model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rllm_core.errors import ConfigError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BASE = "base.json"


@dataclass(frozen=True)
class AdapterBase:
    """An adapter's base model."""

    name: str
    """`tiny`, an absolute path, or a hub id."""
    seed: int = 0
    """Seed for the weights of `tiny`."""
    dtype: str | None = None
    """Weight type for which `sha256` was computed. None if unknown."""
    sha256: str | None = None
    """The weights' fingerprint, see `rllm_local.weights.fingerprint`. None if unknown."""


def adapter_directory(name: str) -> Path | None:
    """Return the adapter directory for a model name. None if the name is not an adapter.

    The adapter is the directory itself, or the model in a run's checkpoint.
    """
    path = Path(name).expanduser()
    for directory in (path, path / "backend" / "model"):
        if (directory / CONFIG).is_file() and not (directory / "config.json").is_file():
            return directory
    return None


def read_base(directory: Path) -> AdapterBase:
    """Return the base model of the adapter in `directory`. Adapters of other programs do not record its weights.

    Raises:
        ConfigError: the files do not specify the base model.
    """
    try:
        name = json.loads((directory / CONFIG).read_text(encoding="utf-8"))["base_model_name_or_path"]
        if not isinstance(name, str):
            raise KeyError("base_model_name_or_path")
        file = directory / BASE
        known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return AdapterBase(**(known | {"name": name}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "bad-adapter",
            f"model.name={str(directory)!r} is a LoRA adapter that does not specify its base model ({error!r}).",
            f"Set base_model_name_or_path in its {CONFIG}.",
        ) from error


def write_base(directory: Path, base: AdapterBase) -> None:
    """Write the file that `read_base` reads."""
    (directory / BASE).write_text(json.dumps(asdict(base)), encoding="utf-8")
