"""Settings: the values of a run, from its `config.yaml`, and which of them its user gave."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONFIG = "config.yaml"


@dataclass(frozen=True, kw_only=True)
class Given:
    """A value that is not a default."""

    key: str
    value: str
    """As JSON."""
    origin: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run at its start. Empty if its config cannot be read."""

    values: Mapping[str, Any]
    """Values by dotted key."""
    given: tuple[Given, ...]

    def text(self, key: str) -> str | None:
        """A value that is a text."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None


def read_settings(folder: Path) -> Settings:
    """The values of the run in a folder."""
    try:
        # libyaml where there is one: runs are listed again and again.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        tree = yaml.load((folder / CONFIG).read_bytes(), loader)
    except (OSError, yaml.YAMLError, ValueError):
        tree = {}
    tree = tree if isinstance(tree, dict) else {}
    core = tree.get("rllm")
    composed = core.pop("composed", ()) if isinstance(core, dict) else ()
    return Settings(values=dict(_leaves(tree)), given=tuple(_given(composed)))


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _given(composed: Any) -> Iterator[Given]:
    """Layers, each a tree as JSON with where it comes from. Later ones win."""
    found: dict[str, Given] = {}
    for layer in composed if isinstance(composed, list) else ():
        try:
            tree = json.loads(layer["set"])
            leaves = list(_leaves(tree))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # A different version wrote this layer. The values themselves are available.
        for key, value in leaves:
            found[key] = Given(key=key, value=json.dumps(value), origin=str(layer.get("from", "")))
    yield from found.values()
