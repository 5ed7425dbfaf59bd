"""The result of translating another system's config to rllm's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Config values that replace keys of the other system. Keys are dotted.

    Keys that are not listed here are in `shared_keys` or `unused_keys`, or they keep their name.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    """Config key -> value."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key of the other system -> the key in `values` that replaces it."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Key of the other system without a counterpart -> the reason, or the alternative, in one or two sentences."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config key -> the other system's default, if it differs from ours."""
    notes: tuple[str, ...] = ()
    """Other facts that the user needs, or settings to make, each in one or two sentences."""
