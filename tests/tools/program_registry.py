"""The registry of a machine with only rllm-core and rllm, for tests that define a plugin of the same name."""

from __future__ import annotations

from rllm_core.plugins.registry import Registry


def program_registry(*, without_environment: str) -> Registry:
    """Return the core's and the program's plugins, except one environment."""
    registry = Registry.load(allow=[], environ={})
    environments = registry._registered["environment"]
    environments[:] = [entry for entry in environments if entry.name != without_environment]
    return registry
