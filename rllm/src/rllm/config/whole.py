"""Whole configurations: results of a composition, given back as input.

``config.yaml`` of a run and what `build_train_config` returns hold every value, and under ``rllm.composed`` what the
user gave to make them. Given back, that is composed once more; what is different from the outcome was changed since, by
somebody or by other versions of the packages, and lies above it. All else follows as it did at first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm.config.keys import known_keys
from rllm.config.layers import Layer
from rllm.config.paths import KeyPath, identical, leaves, picked, put_at, value_at, without
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig

UNUSED = "default, in place of what nothing acted on"
"""Origin of a stored layer that is not the user's: values of the tree that are not as composition gave them."""
KEY: KeyPath = ("rllm", "composed")
"""Where a whole configuration holds the layers it was made from; null in all others."""


def as_whole(tree: Mapping[str, Any], given: Sequence[Layer]) -> dict[str, Any]:
    """A composed tree, with the user's layers that made it. Of equal layers the last one counts."""
    # As JSON without `$`: interpolations stay as the user wrote them, whoever resolves those of the tree.
    stored = [
        {"from": layer.origin, "set": json.dumps(layer.tree).replace("$", "\\u0024")} for layer in given if layer.tree
    ]
    stored = [each for index, each in enumerate(stored) if each not in stored[index + 1 :]]
    return {**tree, "rllm": {**tree["rllm"], "composed": stored}}


def is_whole(layer: Layer) -> bool:
    """Whether a layer is the result of a composition, perhaps changed since."""
    section = layer.tree.get("rllm")
    return isinstance(section, dict) and isinstance(section.get("composed"), list)


def given_layers(layer: Layer) -> list[Layer]:
    """The user's layers of a whole configuration, in its own tier, and perhaps one of origin `UNUSED`.

    Raises:
        ConfigError: somebody has damaged them.
    """
    try:
        stored = value_at(layer.tree, KEY)
        return [Layer(each["from"], dict(json.loads(each["set"])), layer.tier) for each in stored]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "wrong-value",
            f"`{'.'.join(KEY)}` (from {layer.origin}) is not as it was written: {type(error).__name__}: {error}.",
            "Take the key out: then every value of the file counts as yours.",
        ) from error


def changed_since(layer: Layer, composed: Sequence[Mapping[str, Any]]) -> Layer:
    """What a whole configuration holds, and none of the trees that its stored layers give now."""
    changed: dict[str, Any] = {}
    for path, value in leaves(without(layer.tree, KEY)):
        if not any(identical(value, value_at(tree, path)) for tree in composed):
            put_at(changed, path, value)
    return Layer(layer.origin, changed, layer.tier)


def forget(layer: Layer, keys: Iterable[KeyPath]) -> Layer:
    """A saved configuration without some keys, whoever gave them."""
    given = given_layers(layer) if is_whole(layer) else None
    tree, *others = (without(each.tree, *keys) for each in (layer, *(given or ())))
    if given is not None:
        tree = as_whole(tree, [Layer(each.origin, other) for each, other in zip(given, others, strict=True)])
    return Layer(layer.origin, tree, layer.tier)


def values_of(layer: Layer) -> Layer:
    """The values of a whole configuration as a layer that is none: all stay what they are, whatever lies above them."""
    return Layer(layer.origin, without(layer.tree, KEY), layer.tier)


def of_any_backend(layer: Layer) -> Layer:
    """What of a whole configuration means the same with another backend: the core's own keys, but for that choice."""
    known = known_keys(RunConfig)
    sections = {path[:depth] for path in known for depth in range(1, len(path))}
    paths = set(known) - sections - {KEY, ("rllm", "backend"), ("rllm", "profile")}
    return Layer(layer.origin, picked(layer.tree, sorted(paths)), layer.tier)
