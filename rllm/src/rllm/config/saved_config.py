"""Saved configurations: results of a composition, used as input again.

A run's ``config.yaml`` and the result of `build_train_config` contain every value. They also contain the user's layers
under ``rllm.composed``. If such a configuration is an input, these layers are composed again. Values that differ
from the result were changed later, by a user or by other versions of the packages, and take priority over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm.config.keys import known_keys
from rllm.config.layers import Layer, layer_from_file
from rllm.config.merge import merge_layers
from rllm.config.paths import KeyPath, identical, leaves, pick_keys, put_at, value_at, without
from rllm.config.yaml_text import as_yaml
from rllm_core.errors import ConfigError
from rllm_core.files import write_atomically
from rllm_core.schema.run_config import RunConfig

UNUSED = "default, in place of what nothing acted on"
"""Origin of a stored layer that is not the user's: values of the tree that are not as composition gave them."""
NUMBERED = "number of the run"
"""Origin of a stored layer that is not the user's: the name that rllm gave to the run."""
FILE_NAME = "config.yaml"
"""The file in a run's directory. It can be given back as ``--config`` for the same run."""
KEY: KeyPath = ("rllm", "composed")
"""Key of a saved configuration that contains the layers it was made from. It is null in all other configurations."""


def save_config(tree: Mapping[str, Any], directory: str | Path) -> Path:
    """Write values into an existing directory, and return the file. The write is atomic, so no partial file remains.

    Args:
        tree: the values to read back. Text such as ``${key}`` in it is read back as an interpolation.
    """
    file = Path(directory) / FILE_NAME
    write_atomically(file, as_yaml(tree))
    return file


def read_config(directory: str | Path) -> dict[str, Any]:
    """Read what `save_config` wrote, interpolations resolved."""
    return merge_layers([layer_from_file(Path(directory) / FILE_NAME)], []).resolve()


def add_layers(tree: Mapping[str, Any], given: Sequence[Layer]) -> dict[str, Any]:
    """Return a composed tree together with the user's layers. Of equal layers, only the last is stored."""
    # As JSON without `$`, so that interpolations stay as the user wrote them if a caller resolves those in the tree.
    stored = [
        {"from": layer.origin, "set": json.dumps(layer.tree).replace("$", "\\u0024")} for layer in given if layer.tree
    ]
    stored = [each for index, each in enumerate(stored) if each not in stored[index + 1 :]]
    return {**tree, "rllm": {**tree["rllm"], "composed": stored}}


def is_saved_config(layer: Layer) -> bool:
    """True if a layer is the result of a composition, even if it was changed later."""
    section = layer.tree.get("rllm")
    return isinstance(section, dict) and isinstance(section.get("composed"), list)


def stored_layers(layer: Layer) -> list[Layer]:
    """Return the stored layers of a saved configuration, in its own tier: the user's, `UNUSED` and `NUMBERED`.

    Raises:
        ConfigError: the stored layers are damaged.
    """
    try:
        stored = layer.tree["rllm"]["composed"]
        return [Layer(each["from"], dict(json.loads(each["set"])), layer.tier) for each in stored]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "wrong-value",
            f"`{'.'.join(KEY)}` (from {layer.origin}) is damaged: {type(error).__name__}: {error}.",
            "Remove this key. rllm then treats every value in the file as your own.",
        ) from error


def changed_since(layer: Layer, composed: Sequence[Mapping[str, Any]]) -> Layer:
    """Return the values of a saved configuration that differ from the result of composing its stored layers again."""
    changed: dict[str, Any] = {}
    for path, value in leaves(without(layer.tree, KEY)):
        if not any(identical(value, value_at(tree, path)) for tree in composed):
            put_at(changed, path, value)
    return Layer(layer.origin, changed, layer.tier)


def remove_keys(layer: Layer, keys: Iterable[KeyPath]) -> Layer:
    """Return a saved configuration without some keys, regardless of the layer that set them."""
    given = stored_layers(layer) if is_saved_config(layer) else None
    tree, *others = (without(each.tree, *keys) for each in (layer, *(given or ())))
    if given is not None:
        tree = add_layers(tree, [Layer(each.origin, other) for each, other in zip(given, others, strict=True)])
    return Layer(layer.origin, tree, layer.tier)


def select_values(layer: Layer) -> Layer:
    """Return the values of a saved configuration as a plain layer. They stay unchanged under any other layers."""
    return Layer(layer.origin, without(layer.tree, KEY), layer.tier)


def select_core_values(layer: Layer) -> Layer:
    """Return the values that mean the same with another backend: the core's keys, except backend and profile."""
    known = known_keys(RunConfig)
    sections = {path[:depth] for path in known for depth in range(1, len(path))}
    paths = set(known) - sections - {KEY, ("rllm", "backend"), ("rllm", "profile")}
    return Layer(layer.origin, pick_keys(layer.tree, sorted(paths)), layer.tier)
