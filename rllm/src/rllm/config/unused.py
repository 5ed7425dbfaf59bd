"""Keys of a backend that nothing acts on."""

from __future__ import annotations

from typing import Any

from rllm.config.keys import key_around, known_keys
from rllm.config.paths import path_of
from rllm_core.schema.run_config import RunConfig


def covers(pattern: str, key: str) -> bool:
    """Whether a key is the one named, or lies in the section ``name.*``."""
    return key.startswith(pattern[:-1]) if pattern.endswith(".*") else key == pattern


def idle_reason(backend: Any, key: str, profile: str | None = None) -> str | None:
    """What to set instead of a key that a backend (its record) knows to be without effect; None where it has one.

    Args:
        backend: the record.
        key: dotted.
        profile: of the run; None leaves out what is idle in one profile alone.
    """
    path = path_of(key)
    of_core = path in known_keys(RunConfig) or key_around(RunConfig, path) is not None
    if of_core or any(key == row.native for row in backend.shared_keys):
        return None
    idle = {**backend.unused_keys, **backend.unused_keys_by_profile.get(profile, {})}
    return next((text for name, text in idle.items() if covers(name, key)), None)


def same_value(one: Any, other: Any) -> bool:
    """Whether two plain values mean the same in YAML: 1 and 1.0 do, 0 and false do not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
