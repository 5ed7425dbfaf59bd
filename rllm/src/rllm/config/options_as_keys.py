"""Hints for plugin options that the user wrote as keys of the section in which the plugin is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from rllm.config.keys import choice_keys, plugin_keys
from rllm.config.problems import show_value
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

SHOWN = 4


def option_hints(error: ValidationError, registry: Registry) -> Iterator[str]:
    """Yield a hint for each unknown key that is an option of a plugin, with the key that sets it."""
    for detail in error.errors(include_url=False):
        path = tuple(str(part) for part in detail["loc"])
        if detail["type"] != "extra_forbidden" or not path:
            continue
        for key, kind in plugin_keys(RunConfig).items():
            if key[:-1] != path[:-1] or key not in choice_keys(RunConfig):
                continue
            if owners := [each.plugin.name for each in registry.all(kind) if _has(each.plugin, path[-1])]:
                yield _hint(path[-1], kind, ".".join(key), owners, detail["input"])


def _hint(name: str, kind: str, where: str, owners: Sequence[str], value: Any) -> str:
    more = f" and {len(owners) - SHOWN} more" if len(owners) > SHOWN else ""
    choice = f"{{name: {owners[0]}, {name}: {show_value(value)}}}"
    return f"`{name}` is an option of {kind} {', '.join(owners[:SHOWN])}{more}: write {where}='{choice}'."


def _has(plugin: Any, option: str) -> bool:
    return option in plugin.params.model_fields
