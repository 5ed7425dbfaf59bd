"""Options of plugins that somebody wrote as keys of the section in which the plugin is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from rllm_core.config.paths import KeyPath
from rllm_core.config.problems import show_value
from rllm_core.plugins.registry import Registry

PLACES: dict[KeyPath, tuple[tuple[str, str], ...]] = {
    ("rllm", "algorithm"): (("loss", "loss_fn"), ("estimator", "adv_estimator")),
    ("rllm", "rejection_sample"): (("rejection", "mode"),),
}
"""Section -> the kinds that are chosen in it, each with the key that chooses."""
SHOWN = 4


def option_hints(error: ValidationError, registry: Registry) -> Iterator[str]:
    """Where each unknown key belongs that is an option of a plugin."""
    for detail in error.errors(include_url=False):
        path = tuple(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden" and path:
            for kind, key in PLACES.get(path[:-1], ()):
                if owners := [each.plugin.name for each in registry.all(kind) if _has(each.plugin, path[-1])]:
                    yield _hint(path, kind, key, owners, detail["input"])


def _hint(path: KeyPath, kind: str, key: str, owners: Sequence[str], value: Any) -> str:
    name, where = path[-1], ".".join((*path[:-1], key))
    more = f" and {len(owners) - SHOWN} more" if len(owners) > SHOWN else ""
    choice = f"{{name: {owners[0]}, {name}: {show_value(value)}}}"
    return f"`{name}` is an option of {kind} {', '.join(owners[:SHOWN])}{more}: write {where}='{choice}'."


def _has(plugin: Any, option: str) -> bool:
    return option in plugin.params.model_fields
