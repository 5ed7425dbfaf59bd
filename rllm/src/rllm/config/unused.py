"""Keys of a backend that no part of the run uses."""

from __future__ import annotations

from typing import Any

from rllm.config.keys import key_around, known_keys
from rllm.config.paths import split_key
from rllm_core.schema.run_config import RunConfig


def covers(pattern: str, key: str) -> bool:
    """True if a key equals the pattern, or is in the section if the pattern is ``name.*``."""
    return key.startswith(pattern[:-1]) if pattern.endswith(".*") else key == pattern


def idle_reason(backend: Any, key: str, profile: str | None = None) -> str | None:
    """Return the key to set instead of a key without effect, as the backend declares it. None if the key has an effect.

    Args:
        backend: its plugin spec.
        key: dotted.
        profile: the run's profile. With None, keys that are unused only in one profile are ignored.
    """
    path = split_key(key)
    of_core = path in known_keys(RunConfig) or key_around(RunConfig, path) is not None
    if of_core or any(key == row.native for row in backend.shared_keys):
        return None
    idle = {**backend.unused_keys, **backend.unused_keys_by_profile.get(profile, {})}
    return next((text for name, text in idle.items() if covers(name, key)), None)


def same_value(one: Any, other: Any) -> bool:
    """True if two plain values are equal in YAML: 1 and 1.0 are, 0 and false are not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
