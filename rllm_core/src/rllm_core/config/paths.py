"""Paths of keys, and what trees of plain values hold under them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
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


def leaves(tree: dict[str, Any], at: KeyPath = (), *, into_lists: bool = False) -> Iterator[tuple[KeyPath, Any]]:
    """Every key that holds no further keys, with its value. Lists and empty mappings count as values."""
    for key, value in tree.items():
        path = (*at, key)
        if isinstance(value, dict) and value:
            yield from leaves(value, path, into_lists=into_lists)
        elif isinstance(value, list) and value and into_lists:
            yield from leaves({str(index): item for index, item in enumerate(value)}, path, into_lists=True)
        else:
            yield path, value


def split_by(
    tree: dict[str, Any], others: Sequence[Mapping[str, Any]], kept: Container[KeyPath] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that one of some other trees has too, and those that none has or whose paths are `kept`."""
    same: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for path, value in leaves(tree):
        found = path not in kept and any(identical(value_at(other, path), value) for other in others)
        put_at(same if found else own, path, value)
    return same, own


def identical(value: Any, other: Any) -> bool:
    """Equal, and not merely as True equals 1."""
    return type(value) is type(other) and bool(value == other)
