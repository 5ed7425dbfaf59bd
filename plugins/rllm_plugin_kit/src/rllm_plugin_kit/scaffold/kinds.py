"""The kinds of plugin with a template, and how each is chosen. ``kinds.toml`` has their facts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rllm_core import __version__

_MAJOR, _MINOR, *_ = (int(part) for part in __version__.split("."))
LOWEST_CORE = f"{_MAJOR}.{_MINOR}.0"
"""The lowest version of rllm-core in `CORE_BOUNDS`."""
CORE_BOUNDS = f">={_MAJOR}.{_MINOR},<{_MAJOR}.{_MINOR + 1}"
"""Version range of rllm-core that a new package requires: this minor release."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """Data of a kind that is not in ``templates/<kind>``. ``$chosen`` is replaced by the name in config."""

    title: str
    """Name of the kind in prose."""
    summary: str
    """The record's summary."""
    train: str
    """A command that trains with it."""
    config: str
    """The same in a config file, with the plugin's option."""
    dependencies: tuple[str, ...]
    """Requirements of the package. In the file, ``$bounds`` means `CORE_BOUNDS`."""


def _read_template(facts: Mapping[str, Any]) -> Template:
    dependencies = tuple(each.replace("$bounds", CORE_BOUNDS) for each in facts["dependencies"])
    return Template(**{**facts, "dependencies": dependencies})


_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TEMPLATES: Mapping[str, Template] = MappingProxyType({kind: _read_template(facts) for kind, facts in _FACTS.items()})
