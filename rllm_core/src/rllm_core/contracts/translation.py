"""What a backend makes of a configuration that was written for the system below it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Values of the configuration, in place of keys of the other system. Keys are dotted.

    Keys that it does not mention are those of `shared_keys`, of `unused_keys`, and those that keep their name.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    """Key of the configuration -> value."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key of the other system -> the key in `values` that stands for it."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Key of the other system that has no counterpart -> why, or what to do instead: one or two sentences."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Key of the configuration -> what the other system takes where nothing is said, where that differs."""
    notes: tuple[str, ...] = ()
    """What else the user has to know or to set, a sentence or two each."""
