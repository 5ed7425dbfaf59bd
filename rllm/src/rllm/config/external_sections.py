"""Sections that another system reads. Their keys and types come from the packaged YAML (`section.ExternalSection`).

Our own schema for such a system would be a copy of its keys, and correct for only one of its versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel

from rllm.config.keys import known_keys
from rllm.config.layers import Tier
from rllm.config.packaged import packaged_values
from rllm.config.paths import KeyPath, leaves, split_key
from rllm.config.problems import MOST_SHOWN, ConfigLine, unknown_key, wrong_value
from rllm.config.values import MergedValues
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import ExternalSection

_MEANT: tuple[tuple[type, str], ...] = ((bool, "true or false"), (int, "a whole number"), (float, "a number"))


def compare_with_packaged_values(
    tree: Mapping[str, Any], merged: MergedValues, backend: Any, profile: str | None
) -> list[ConfigLine]:
    """Return a line for each key in an `ExternalSection` section that is unknown or has another type than packaged.

    Args:
        tree: values of `merged`, resolved.
        backend: its plugin spec.
    """
    marked = _marks(backend.params)
    if not marked:
        return []
    known = packaged_values(backend, profile)
    paths = (path[:depth] for path, _ in leaves(known) for depth in range(1, len(path) + 1))
    optional = (split_key(key) for mark in marked.values() for key in mark.optional)
    keys = tuple(dict.fromkeys((*known_keys(RunConfig), *known_keys(backend.params), *paths, *optional)))
    problems: list[ConfigLine] = []
    for section, mark in marked.items():
        # Of a section that the core has too, its own schema checks the core's keys.
        of_core = {key[1] for key in known_keys(RunConfig) if len(key) > 1 and key[0] == section}
        given = tree.get(section, {})
        if not isinstance(given, dict):
            continue  # validation says so
        values = {key: value for key, value in given.items() if key not in of_core}
        lines = _Comparison(merged, mark, keys).list_problems(values, known.get(section, {}), (section,))
        problems += islice(lines, MOST_SHOWN)
    return problems


def takes_key(backend: Any, profile: str | None, path: KeyPath) -> bool:
    """True if a section that another system reads has the key, or accepts any key at that place.

    Args:
        backend: its plugin spec.
    """
    mark = _marks(backend.params).get(path[0])
    if mark is None:
        return False
    if ".".join(path) in mark.optional or any(path[: len(free)] == free for free in map(split_key, mark.free)):
        return True
    node: Any = packaged_values(backend, profile)
    for part in path:
        if not isinstance(node, Mapping):
            return node is None
        if part not in node:
            return not node  # one that is packaged empty takes anything
        node = node[part]
    return True


@dataclass(frozen=True)
class _Comparison:
    """Comparison of a section's values with the packaged values."""

    merged: MergedValues
    mark: ExternalSection
    keys: tuple[KeyPath, ...]
    """All known keys, for hints."""

    def list_problems(self, values: Mapping[str, Any], known: Mapping[str, Any], at: KeyPath) -> Iterator[ConfigLine]:
        for key, value in values.items():
            path = (*at, key)
            if key in known:
                yield from self._value(value, known[key], path)
            elif ".".join(path) not in self.mark.optional and not self._is_free(at):
                yield unknown_key(path, self.merged.origin(path), self.keys, value)

    def _is_free(self, path: KeyPath) -> bool:
        """True if a mapping, or a mapping around it, takes any key."""
        return any(path[: len(free)] == free for free in map(split_key, self.mark.free))

    def _value(self, value: Any, default: Any, path: KeyPath) -> Iterator[ConfigLine]:
        if default is None or value is None:
            return
        if isinstance(default, dict) and isinstance(value, dict):
            if default:  # one that is packaged empty takes anything
                yield from self.list_problems(value, default, path)
            return
        expected = "a mapping" if isinstance(default, dict) else _other_type(value, default)
        # A packaged value may point to another key; that one is wrong then, and said to be.
        if expected and self.merged.tier(path) is not Tier.PACKAGED:
            text = f"{wrong_value(path, value, self.merged.origin(path))}: expected {expected}."
            yield ConfigLine("wrong-value", text)


def _other_type(value: Any, default: Any) -> str | None:
    """Return the expected type if a value's type differs from the packaged one. None if they agree."""
    if isinstance(default, list):
        return None if isinstance(value, list) else "a list"
    if isinstance(default, str):
        # Many a name may be a list of names as well.
        return None if isinstance(value, str | list) else "text"
    kind, words = next(pair for pair in _MEANT if isinstance(default, pair[0]))
    fits = type(value) is kind or (kind is float and type(value) is int)
    return None if fits else words


def _marks(schema: type[BaseModel]) -> dict[str, ExternalSection]:
    fields = schema.model_fields.items()
    return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, ExternalSection)}
