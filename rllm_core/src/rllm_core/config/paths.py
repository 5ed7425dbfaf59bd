"""Paths of keys, and what trees of plain values hold under them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

KeyPath = tuple[str, ...]
ABSENT: Any = object()
"""What `value_at` gives where a tree has no such key; not even null."""


def path_of(key: str) -> KeyPath:
    """The path of a dotted key: ``rllm.rollout.n``. Names of a plugin's options may have dots themselves."""
    return tuple(key.split("."))


def value_at(tree: Any, path: KeyPath) -> Any:
    """What a tree holds under a key; `ABSENT` where there is none."""
    for part in path:
        if not isinstance(tree, Mapping) or part not in tree:
            return ABSENT
        tree = tree[part]
    return tree


def put_at(tree: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Set a value in a tree, with the sections above it."""
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def nested(path: KeyPath, value: Any) -> dict[str, Any]:
    """A tree that holds one value."""
    tree: dict[str, Any] = reduce(lambda inner, part: {part: inner}, reversed(path), value)
    return tree
