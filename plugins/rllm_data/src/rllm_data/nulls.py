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

    Values of the feature `Json` are unchanged, because it has only the keys of the row. A message keeps `content`.

    Args:
        feature: feature of the library `datasets`, or a mapping of features.
        is_inside: True for a part of a message or of a tool.
    """
    if isinstance(feature, Mapping):
        cleaners = {name: cleaner_of(each, is_inside=is_inside) for name, each in feature.items()}
        below = {name: clean for name, clean in cleaners.items() if clean is not None}
        if is_inside:
            return partial(_clean_part, below, frozenset({CONTENT} & feature.keys()))
        return partial(_clean_struct, below) if below else None
    item = getattr(feature, "feature", None)
    is_part = is_inside or (isinstance(item, Mapping) and _is_message_or_tool(item))
    inner = None if item is None else cleaner_of(item, is_inside=is_part)
    return None if inner is None else partial(_clean_list, inner)


def _is_message_or_tool(item: Mapping[str, Any]) -> bool:
    """Return True if the items of a list are messages or tools."""
    is_message = ROLE in item and bool({CONTENT, "tool_calls"} & item.keys())
    return is_message or "function" in item or {"name", "parameters"} <= item.keys()


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
