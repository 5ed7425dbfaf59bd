"""The config of the run whose checkpoint is played."""

from __future__ import annotations

from pathlib import Path

from rllm_core.cli.configuring import Request
from rllm_core.config.compose import BACKEND_KEY
from rllm_core.config.layers import Layer, layer_from_file, layers_from_overrides
from rllm_core.config.merge import merge_layers
from rllm_core.config.paths import path_of, value_at
from rllm_core.config.whole import of_any_backend, values_of
from rllm_core.schema.run_config import RunConfig
from rllm_core.training.resuming import saved_config, saved_value


def config_of_checkpoint(request: Request) -> Layer | None:
    """A layer to put beneath the request; None where its model is not a checkpoint, or is from another environment.

    A checkpoint lies in ``<run>/checkpoints/<step>``, its model deeper still.
    On another environment the prompts and lengths of the run mean nothing.
    """
    if request.model is None:
        return None
    path = Path(request.model).expanduser().absolute()
    runs = [folder.parent for folder in (path, *path.parents) if folder.name == "checkpoints"]
    saved = saved_config(_as_given(runs[0])) if runs else None
    if saved is None:
        return None
    if request.environment not in (None, saved_value(saved, "rllm.env.name")):
        return None
    # Its model is the checkpoint now, for which there is no recipe: what that of the run's model said stays.
    same = _backend_of(request) in (None, saved_value(saved, BACKEND_KEY))
    return values_of(saved) if same else of_any_backend(saved)


def _backend_of(request: Request) -> str | None:
    """The backend that was asked for; None where none was."""
    given = [layer_from_file(file) for file in request.files] + layers_from_overrides(request.overrides)
    name = value_at(merge_layers(given, [RunConfig]).tree, path_of(BACKEND_KEY))
    return name.rpartition("/")[2] if isinstance(name, str) else None


def _as_given(folder: Path) -> Path:
    """Relative to the working directory where it lies within, as users write it."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
