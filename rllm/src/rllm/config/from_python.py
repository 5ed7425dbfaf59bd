"""Configurations that come from Python: dictionaries, OmegaConf objects, and what ``@hydra.main`` hands to a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from rllm.config.choices import BACKEND_KEY, PROFILE_KEY, chosen_backend
from rllm.config.compose import Composed
from rllm.config.layers import (
    BACKEND_GROUP,
    COMMAND_LINE,
    Layer,
    Tier,
    layer_from_file,
    layer_from_keys,
    read_override,
)
from rllm.config.merge import merge_layers
from rllm.config.packaged import base_layer, packaged_layers
from rllm.config.paths import KeyPath, leaves, pick_keys, split_by, split_key
from rllm.config.saved_config import is_saved_config
from rllm.config.yaml_text import DEEPEST
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

PYTHON = "the Python config"

PythonConfig = Mapping[str, Any] | str | Path | None
"""A (partial) configuration: a mapping, an OmegaConf object, the path of a YAML file, or nothing."""


def layer_from_python(config: PythonConfig) -> Layer:
    """Return the layer of a configuration given in Python, with all its keys.

    Raises:
        ConfigError: it is not a mapping, or contains a value that a configuration cannot have.
    """
    if config is None:
        return Layer(PYTHON, {})
    if isinstance(config, str | Path):
        return layer_from_file(config)
    plain = _plain(config)
    if not isinstance(plain, dict):
        raise ConfigError(
            "bad-value-type",
            f"The config is of type {type(config).__name__}.",
            "Give a mapping, an OmegaConf object or the path of a YAML file.",
        )
    plain.pop("hydra", None)
    return Layer(PYTHON, plain)


def remove_packaged_values(layer: Layer, registry: Registry) -> list[Layer]:
    """Return the user's part of a configuration as layers. Outside of ``@hydra.main``, this is the whole configuration.

    In a script under ``@hydra.main``, the configuration also contains all packaged values. Only keys that differ from
    them or are on the script's command line count as set by the user.

    Raises:
        ConfigError: the backend does not exist, or its key and its group contradict each other.
    """
    hydra = _running_hydra()
    # A configuration that Hydra composed contains all of the core's sections. Any other one is the script's own.
    section = layer.tree.get("rllm")
    of_hydra = isinstance(section, dict) and section.keys() >= set(base_layer().tree["rllm"])
    if hydra is None or is_saved_config(layer) or not of_hydra:
        return [layer]
    return _layers_of_script(layer.tree, hydra, registry)


def replaced_in_script(composed: Composed) -> list[str]:
    """Return a warning if the environment or recipe replaces values of Hydra's configuration in a script."""
    keys = [key for key, origin in composed.origins.items() if origin.startswith(("environment ", "recipe "))]
    if not keys or _running_hydra() is None:
        return []
    return [
        f"environment {composed.config.rllm.env.name} sets {', '.join(keys)}, which in Hydra's configuration still "
        "have the values of the packages; name a key on the command line to keep yours"
    ]


def _plain(value: Any, depth: int = 0) -> Any:
    """Convert mappings to dictionaries, OmegaConf's lists to lists, and members of enumerations to their values."""
    from omegaconf import DictConfig, ListConfig, OmegaConf

    if depth > DEEPEST:
        raise ConfigError(
            "nested-too-deeply",
            f"The config is nested deeper than {DEEPEST} levels, or contains itself.",
            "Give it fewer levels, and no object that contains itself.",
        )
    if isinstance(value, DictConfig | ListConfig):
        value = OmegaConf.to_container(value, resolve=False)
    if isinstance(value, Mapping):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    return value.value if isinstance(value, Enum) else value


def _running_hydra() -> Any:
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.get() if HydraConfig.initialized() else None


def _layers_of_script(tree: dict[str, Any], hydra: Any, registry: Registry) -> list[Layer]:
    from omegaconf import OmegaConf

    # As written: an interpolation in a word would be resolved on the way, or fail.
    words: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    lower = [base_layer()]
    section = tree.get("rllm")
    option = hydra.runtime.choices.get(BACKEND_GROUP)
    # Without the group there is no backend in it; without the key this is no configuration that Hydra composed.
    profile = None
    if option is not None and isinstance(section, dict) and "backend" in section:
        name, _, of_option = option.partition("/")  # ``rllm/backend=verl/cpu`` is a profile
        profile = of_option or None
        backend = _agreed_backend(section["backend"], name, words)
        tree = {**tree, "rllm": {**section, "backend": backend}}
        record = chosen_backend(registry, [Layer(PYTHON, {"rllm": {"backend": backend}})])
        lower = packaged_layers(record, profile)
    packaged = merge_layers(lower, [RunConfig]).tree
    _, own = split_by(tree, packaged)
    chosen = {} if profile is None else {PROFILE_KEY: profile}
    return [
        Layer(PYTHON, own),
        layer_from_keys(chosen, COMMAND_LINE, Tier.COMMAND_LINE),
        Layer(PYTHON, pick_keys(tree, _keys_of_primary_file(hydra))),
        Layer(COMMAND_LINE, pick_keys(tree, _keys_of_words(words)), Tier.COMMAND_LINE),
    ]


def _keys_of_primary_file(hydra: Any) -> list[KeyPath]:
    """Return the keys in the script's own primary file, including keys with their packaged value."""
    directories = [source.path for source in hydra.runtime.config_sources if source.provider == "main"]
    files = [Path(directory) / f"{hydra.job.config_name}.yaml" for directory in directories if "://" not in directory]
    trees = [layer_from_file(file).tree for file in files if file.is_file()]
    return [path for tree in trees for path, _ in leaves(tree) if path[0] not in ("defaults", "hydra")]


def _agreed_backend(said: Any, chosen: str, words: Iterable[str]) -> str:
    """Return the backend's name from its key and its group. The two may be spelled differently."""
    if isinstance(said, str) and said.rpartition("/")[2] == chosen:
        return said
    # The key has the core's default if the backend's own file does not set it.
    by_word = any(word.lstrip("+").startswith(f"{BACKEND_KEY}=") for word in words)
    if said == base_layer().tree["rllm"]["backend"] and not by_word:
        return chosen
    raise ConfigError(
        "backend-mismatch",
        f"`{BACKEND_KEY}` is {said!r}; the config was composed with {BACKEND_GROUP}={chosen}.",
        f"Choose it by {BACKEND_GROUP}={said}.",
    )


def _keys_of_words(words: Iterable[str]) -> Iterator[KeyPath]:
    for word in words:
        try:
            key = read_override(word)[0]
        except ConfigError:
            continue  # Hydra took it, so it deletes a key, or chooses from a group of the script's own.
        yield split_key(key)
