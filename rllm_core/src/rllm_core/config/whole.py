"""Whole configurations: results of a composition, given back as input.

``config.yaml`` of a run and what `build_train_config` returns hold every value, whoever set it. Given back as they are
they mean the same run. Changed in one place, only what somebody once changed may count as set by a user: values that a
backend derives from others, mirrors of shared keys, and what a recipe said must give way to the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm_core.config.keys import known_keys
from rllm_core.config.layers import Layer, Tier
from rllm_core.config.merge import merge_layers
from rllm_core.config.paths import ABSENT, KeyPath, leaves, put_at, split_by, value_at
from rllm_core.config.resolve import escape, resolve_interpolations
from rllm_core.schema.run_config import RunConfig

MARK = "composed"
"""Key of ``rllm`` that is true in a whole configuration, and nowhere else."""


def as_whole(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A composed tree, marked as whole."""
    return {**tree, "rllm": {**tree["rllm"], MARK: True}}


def is_whole(layer: Layer) -> bool:
    """Whether a layer is the result of a composition, perhaps changed since."""
    section = layer.tree.get("rllm")
    return isinstance(section, dict) and section.get(MARK) is True


def without_mark(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree as it was before `as_whole` marked it."""
    section = {key: value for key, value in tree["rllm"].items() if key != MARK}
    return {**tree, "rllm": section}


def part_of(layer: Layer, paths: Iterable[KeyPath], tier: Tier) -> Layer:
    """Some values of a layer, those that it has of the keys given, as a layer of another tier."""
    tree: dict[str, Any] = {}
    for path in paths:
        if (value := value_at(layer.tree, path)) is not ABSENT:
            put_at(tree, path, value)
    return Layer(layer.origin, tree, tier)


def of_any_backend(layer: Layer) -> Layer:
    """What of a whole configuration means the same with another backend: the core's own keys, but for that choice."""
    known = known_keys(RunConfig)
    sections = {path[:depth] for path in known for depth in range(1, len(path))}
    paths = set(known) - sections - {("rllm", "backend"), ("rllm", "profile")}
    return part_of(Layer(layer.origin, without_mark(layer.tree)), sorted(paths), layer.tier)


def split_whole(layer: Layer, composed: Sequence[Mapping[str, Any]], keep: Layer | None = None) -> tuple[Layer, Layer]:
    """What of a whole configuration is as composition gives it, and what somebody set otherwise.

    Args:
        composed: trees that its choices alone, or with some of its values, give.
        keep: what is known to be set by somebody, whatever `composed` holds.
    """
    kept = {path for path, _ in leaves(keep.tree)} if keep else set()
    given = resolve_interpolations(merge_layers([Layer(layer.origin, without_mark(layer.tree))], []))
    same, own = split_by(given, composed, kept)
    return Layer(layer.origin, escape(same), Tier.SAVED), Layer(layer.origin, escape(own), layer.tier)
