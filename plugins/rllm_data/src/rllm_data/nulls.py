"""Chats and tools without the nulls that a file format adds.

Columns of files have one type. So a struct gets all fields that any row has, and rows without a field have null. In a
chat these nulls would become arguments of tool calls and properties of tools that are in no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Clean = Callable[[Any], Any]
ROLE, CONTENT = "role", "content"


def cleaner_of(feature: Any, *, is_inside: bool = False) -> Clean | None:
    """Return a function that removes the nulls in the chats and tools of a value. None if the feature has none of them.

    Values of the feature `Json` are unchanged, because it stores only what a row has. A message keeps `content`.

    Args:
        feature: feature of the library `datasets`, or a mapping of features.
        is_inside: True for a part of a message or of a tool.
    """
    if isinstance(feature, Mapping):
        is_part = is_inside or ROLE in feature or _is_tool(feature)
        cleaners = {name: cleaner_of(each, is_inside=is_part) for name, each in feature.items()}
        below = {name: clean for name, clean in cleaners.items() if clean is not None}
        if is_part:
            return partial(_clean_part, below, frozenset({CONTENT} if ROLE in feature else ()))
        return partial(_clean_struct, below) if below else None
    inner = cleaner_of(feature.feature, is_inside=is_inside) if hasattr(feature, "feature") else None
    return None if inner is None else partial(_clean_list, inner)


def _is_tool(feature: Mapping[str, Any]) -> bool:
    return "function" in feature or {"name", "parameters"} <= feature.keys()


def _clean_part(below: Mapping[str, Clean], kept: frozenset[str], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = {name: each for name, each in value.items() if each is not None or name in kept}
    for name, clean in below.items():
        if name in made:
            made[name] = clean(made[name])
    return made


def _clean_struct(chats: Mapping[str, Clean], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {**value, **{name: clean(value[name]) for name, clean in chats.items() if name in value}}


def _clean_list(clean: Clean, value: Any) -> Any:
    return [clean(each) for each in value] if isinstance(value, list) else value


def row_cleaner_of(features: Mapping[str, Any]) -> Clean:
    """Return a function that removes the nulls in the chats and tools of a row with these features."""
    cleaners = {name: cleaner_of(feature) for name, feature in features.items()}
    return partial(_clean_struct, {name: clean for name, clean in cleaners.items() if clean is not None})
