"""Tools in one normal form: ``{"type": "function", "function": {"name": …, "description": …, "parameters": …}}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rllm.rows.messages import Unknown, is_empty, refuse, unknown_key
from rllm.rows.problem import RowError, shown
from rllm_core.data.messages import Tool

WITHOUT_MEANING = frozenset(("strict", "cache_control"))
"""Keys that are ignored, because no chat template shows them. ``strict`` is an instruction for the sampler."""
_EXAMPLE = 'Write {"type": "function", "function": {"name": …, "parameters": JSON schema}}.'


def read_tools(value: Any, place: str = "tools", unknown: Unknown = refuse) -> tuple[Tool, ...]:
    """Return tools in the normal form.

    Args:
        value: a list of tools, or its JSON text. Each tool may be JSON text too. Null and empty mean no tools.
        place: the key of `value`, for errors.
        unknown: called for an unknown key that is not empty.

    Raises:
        RowError: a part of the tools cannot be used.
    """
    found = _parse_json(value, place)
    if is_empty(found):
        return ()
    if not isinstance(found, list | tuple):
        hint = "Put it into a list." if isinstance(found, Mapping) else _EXAMPLE
        raise RowError(place, f"{shown(found)} instead of a list of tools", hint)
    tools = [
        _tool(_parse_json(each, f"{place}[{number}]"), f"{place}[{number}]", unknown)
        for number, each in enumerate(found)
    ]
    names = [tool["function"]["name"] for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RowError(place, f"has two tools named {twice!r}", "Rename one, or remove it.")
    return tuple(tools)


def _tool(found: Any, place: str, unknown: Unknown) -> Tool:
    if not isinstance(found, Mapping):
        raise RowError(place, f"{shown(found)} instead of an object", _EXAMPLE)
    function = found.get("function", found)  # the function itself, without the key `function`
    if not isinstance(function, Mapping) or found.get("type", "function") not in ("function", None):
        raise RowError(place, "has no object `function`", _EXAMPLE)
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise RowError(f"{place}.function.name", shown(function.get("name")), _EXAMPLE)
    if not is_empty(function.get("input_schema")):
        raise RowError(f"{place}.input_schema", "is a key of Anthropic's format", "Rename it to 'parameters'.")
    kept = {
        key: value
        for key, value in function.items()
        if value is not None and key not in WITHOUT_MEANING and not (function is found and key == "type")
    }
    if "description" in kept and not isinstance(kept["description"], str):
        raise RowError(f"{place}.function.description", f"{shown(kept['description'])} instead of text", _EXAMPLE)
    if "parameters" in kept:
        kept["parameters"] = _parse_json(kept["parameters"], f"{place}.function.parameters")
        if not isinstance(kept["parameters"], Mapping):
            raise RowError(
                f"{place}.function.parameters", f"{shown(kept['parameters'])} instead of an object", _EXAMPLE
            )
    if function is not found:
        for key in found.keys() - {"type", "function"} - WITHOUT_MEANING:
            if not is_empty(found[key]):
                unknown(unknown_key(place, key), key)
    return {"type": "function", "function": kept}


def _parse_json(value: Any, place: str) -> Any:
    """Return what JSON text contains, because columns of files often store tools as text."""
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError(place, f"is not JSON ({error})", _EXAMPLE) from error
