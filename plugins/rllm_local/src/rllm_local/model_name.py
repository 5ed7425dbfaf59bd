"""Checks of ``model.name`` (`tiny`, a directory, or a hub id) that do not need torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rllm_backend_kit.model_file_checks import check_model_files
from rllm_backend_kit.model_files import model_directory, path_or_hub_id
from rllm_core.errors import ConfigError, did_you_mean
from rllm_local.adapter_files import adapter_directory, read_base
from rllm_local.settings import LocalConfig

TINY = "tiny"


def check_model(config: LocalConfig) -> None:
    """Raise ConfigError for a directory without a model, an adapter without its base model, or LoRA keys that cannot
    work."""
    model = config.model
    path_or_hub_id("model.name", model.name)
    adapter = adapter_directory(model.name)
    if adapter is not None:
        _check_name(read_base(adapter).name, f"model.name={model.name!r} is a LoRA adapter. Its base model: ")
    else:
        _check_name(model.name)
    if (model.lora_rank or adapter is not None) and find_spec("peft") is None:
        what = f"model.name={model.name!r} is a LoRA adapter" if adapter else f"`model.lora_rank` is {model.lora_rank}"
        raise ConfigError("missing-package", f"{what}, but peft is not installed.", "pip install 'rllm-local[lora]'")
    if not model.lora_rank:
        for key in ("lora_alpha", "lora_target_modules"):
            if getattr(model, key) != type(model).model_fields[key].default:
                raise ConfigError(
                    "unused-key",
                    f"`model.{key}` is {getattr(model, key)!r} and has no effect, because the run trains all weights.",
                    "Set model.lora_rank to train a LoRA adapter, or remove the key.",
                )


def _check_name(name: str, before: str = "") -> None:
    if name != TINY:
        try:
            directory = directory_of(name)
            if directory is not None:
                check_model_files(f"model.name={name!r}", directory)
        except ConfigError as error:
            raise ConfigError(error.code, f"{before}{error.message}", error.hint) from error


def directory_of(name: str) -> Path | None:
    """Return the Hugging Face directory for a model name. None if the name is a hub id.

    Raises:
        ConfigError: the name is a path without a model, or it is neither a path nor a hub id.
    """
    path = path_or_hub_id("model.name", name)
    if path is None:
        return None
    directory = model_directory(path)
    if directory is None:
        raise ConfigError("model-not-loadable", f"model.name={name!r}: {_describe_path(path)}", model_name_hint(name))
    return directory


def model_name_hint(name: str) -> str:
    """Return the hint for a model name that cannot be loaded."""
    path = Path(name).expanduser()
    here = [str(each) for each in path.parent.glob("*") if each.is_dir()] if not path.exists() else []
    close = did_you_mean(str(path), [TINY, *here])
    return (
        f"{close} Use `tiny`, a directory saved by Hugging Face transformers, a run's checkpoint, or a hub id.".strip()
    )


def _describe_path(path: Path) -> str:
    if not path.exists():
        return "the directory does not exist."
    return "it is a file, not a directory." if path.is_file() else "the directory contains no config.json of a model."
