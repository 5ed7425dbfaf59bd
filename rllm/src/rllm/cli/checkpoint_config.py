"""The config of the run whose checkpoint generates the rollouts."""

from __future__ import annotations

from pathlib import Path

from rllm.cli.configuring import Request
from rllm.config.choices import BACKEND_KEY, chosen_backend
from rllm.config.layers import Layer, layer_from_file, layers_from_overrides
from rllm.config.merge import merge_layers
from rllm.config.paths import KeyPath, split_key, value_at
from rllm.config.run_registry import registry_for
from rllm.config.saved_config import remove_keys, select_core_values, select_values
from rllm.training.resuming import saved_config, saved_value
from rllm_core.schema.run_config import RunConfig

OF_TRAINING = tuple(
    split_key(f"rllm.{key}")
    for key in (
        *("algorithm.adv_estimator", "algorithm.estimator_map", "algorithm.loss_fn", "algorithm.loss_map"),
        *(
            "transform.grouping",
            "sampler",
            "teacher",
            "rejection_sample",
            "pipeline",
            "trainer.logger",
            "trainer.observers",
        ),
    )
)
"""Keys that choose plugins for training. Rollouts do not need these plugins."""


def config_of_checkpoint(request: Request) -> Layer | None:
    """Return a layer with the config of the run that wrote the request's checkpoint. It goes beneath the request.

    None if the model is not a checkpoint, or if its run used a different environment: that run's prompts and lengths
    do not apply then. A checkpoint is the directory ``<run>/checkpoints/<step>``. Its model is in a subdirectory.
    """
    if request.model is None:
        return None
    path = Path(request.model).expanduser().absolute()
    runs = [directory.parent for directory in (path, *path.parents) if directory.name == "checkpoints"]
    saved = saved_config(_as_given(runs[0])) if runs else None
    if saved is None:
        return None
    if request.environment not in (None, saved_value(saved, "rllm.env.name")):
        return None
    # No recipe exists for a checkpoint, so keep the values from the recipe of the run's original model.
    same = _read_backend(request) in (None, saved_value(saved, BACKEND_KEY))
    return (
        remove_keys(select_values(saved), _of_training(saved))
        if same
        else remove_keys(select_core_values(saved), OF_TRAINING)
    )


def _of_training(saved: Layer) -> list[KeyPath]:
    """Return `OF_TRAINING` and the names of these keys in the run's backend."""
    values = select_values(saved)
    shared = chosen_backend(registry_for([values]), [values]).shared_keys
    natives = {split_key(each.native): split_key(each.rllm) for each in shared}
    return [*OF_TRAINING, *(native for native, core in natives.items() if core in OF_TRAINING)]


def _read_backend(request: Request) -> str | None:
    """Return the backend that the request sets. None if it sets no backend."""
    given = [layer_from_file(file) for file in request.files] + layers_from_overrides(request.overrides)
    name = value_at(merge_layers(given, [RunConfig]).tree, split_key(BACKEND_KEY))
    return name.rpartition("/")[2] if isinstance(name, str) else None


def _as_given(directory: Path) -> Path:
    """Return a path relative to the working directory if it is inside, as users write it."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
