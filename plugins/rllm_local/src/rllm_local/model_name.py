"""What ``model.name`` may be, as far as it can be seen without torch: `tiny`, a folder, or a hub id."""

from __future__ import annotations

from pathlib import Path

from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.rollout.model_files import model_folder
from rllm_local.settings import LocalConfig

TINY = "tiny"


def check_model_name(config: LocalConfig) -> None:
    """Raise ConfigError when the name is that of a folder which holds no model."""
    if config.model.name != TINY:
        folder_of(config.model.name)


def folder_of(name: str) -> Path | None:
    """The Hugging Face folder that a name stands for; None when it is a hub id.

    Raises:
        ConfigError: it looks like a path, and there is no model.
    """
    path = Path(name).expanduser()
    if not (path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1):
        return None
    folder = model_folder(path)
    if folder is None:
        raise ConfigError(f"model.name={name!r}: {_what_is_there(path)}", how_to_name_a_model(name))
    return folder


def how_to_name_a_model(name: str) -> str:
    """What to do about a name that cannot be loaded."""
    close = did_you_mean(name, [TINY])
    return f"{close} Use `tiny`, a folder saved by Hugging Face transformers, a run's checkpoint, or a hub id.".strip()


def _what_is_there(path: Path) -> str:
    if not path.exists():
        return "there is no such folder."
    return "it is a file, not a folder." if path.is_file() else "the folder holds no config.json of a model."
