"""Paths of keys, and what trees of plain values hold under them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

KeyPath = tuple[str, ...]
ABSENT: Any = object()
"""Returned by `value_at` if a tree has no such key. Distinct from a null value."""


def split_key(key: str) -> KeyPath:
    """Return the path of a dotted key such as ``rllm.rollout.n``. Names of a plugin's options may have dots."""
    return tuple(key.split("."))


def value_at(tree: Any, path: KeyPath) -> Any:
    """Return the value of a key in a tree. `ABSENT` if it has none."""
    for part in path:
        if not isinstance(tree, Mapping) or part not in tree:
            return ABSENT
        tree = tree[part]
    return tree


class NoSectionError(Exception):
    """A plain value is in a place that must be a section."""

    def __init__(self, path: KeyPath, value: Any) -> None:
        super().__init__(".".join(path))
        self.path, self.value = path, value


def put_at(tree: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Set a value in a tree, with the sections above it.

    Raises:
        NoSectionError: one of these is a value.
    """
    for depth, part in enumerate(path[:-1], 1):
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise NoSectionError(path[:depth], tree)
    tree[path[-1]] = value


def leaves(tree: dict[str, Any], at: KeyPath = (), *, into_lists: bool = False) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every key without subkeys, with its value. Lists and empty mappings count as values."""
    for key, value in tree.items():
        path = (*at, key)
        if isinstance(value, dict) and value:
            yield from leaves(value, path, into_lists=into_lists)
        elif isinstance(value, list) and value and into_lists:
            yield from leaves({str(index): item for index, item in enumerate(value)}, path, into_lists=True)
        else:
            yield path, value


def pick_keys(tree: Mapping[str, Any], paths: Iterable[KeyPath]) -> dict[str, Any]:
    """Return the part of a tree with the given keys. Missing keys are ignored."""
    part: dict[str, Any] = {}
    for path in paths:
        if (value := value_at(tree, path)) is not ABSENT:
            put_at(part, path, value)
    return part


def without(tree: Mapping[str, Any], *paths: KeyPath) -> dict[str, Any]:
    """Return a tree without some values, and without the sections that contained only these values."""
    left = dict(tree)
    for head, *rest in paths:
        if value_at(left, (head, *rest)) is ABSENT:
            continue
        # An empty section would count as set by the user, with all its possible keys.
        inner = without(left.pop(head), tuple(rest)) if rest else left.pop(head) and {}
        left |= {head: inner} if inner else {}
    return left


def split_by(tree: dict[str, Any], other: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a tree into the values that `other` also has, and the remaining values."""
    same: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for path, value in leaves(tree):
        put_at(same if identical(value_at(other, path), value) else own, path, value)
    return same, own


def identical(value: Any, other: Any) -> bool:
    """True if two values are equal and have the same type. True and 1 are not identical."""
    return type(value) is type(other) and bool(value == other)
