"""Keys that a user set and nothing acts on: an error each, or a warning where ``rllm.unused_keys`` says so."""

from __future__ import annotations

from typing import Any

from rllm_core.config.keys import known_keys
from rllm_core.config.paths import path_of
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig


class UnusedKeys:
    """Takes every finding of a run, in the order in which they are found."""

    def __init__(self, config: RunConfig) -> None:
        self._tolerated = config.rllm.unused_keys == "warn"
        self.warnings: list[str] = []

    def found(self, problem: str, remedy: str) -> None:
        """Take a key that nothing acts on.

        Raises:
            ConfigError: unused keys are errors in this run.
        """
        if not self._tolerated:
            raise ConfigError(problem, remedy)
        self.warnings.append(f"{problem} {remedy}")


def covers(pattern: str, key: str) -> bool:
    """Whether a key is the one named, or lies in the section ``name.*``."""
    return key.startswith(pattern[:-1]) if pattern.endswith(".*") else key == pattern


def idle_reason(backend: Any, key: str) -> str | None:
    """What to set instead of a key that a backend (its record) knows to be without effect; None where it has one."""
    of_core = path_of(key) in known_keys(RunConfig)
    if of_core or any(key == row.native for row in backend.shared_keys):
        return None
    return next((text for name, text in backend.idle_keys.items() if covers(name, key)), None)


def same_value(one: Any, other: Any) -> bool:
    """Whether two plain values mean the same in YAML: 1 and 1.0 do, 0 and false do not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
