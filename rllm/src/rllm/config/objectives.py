"""The objectives in ``rllm.objective``, and the default values that they set."""

from __future__ import annotations

from collections.abc import Sequence

from rllm.config.layers import Layer, Tier, layer_from_dotted
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry

OBJECTIVE_KEY = "rllm.objective"
DEFAULT_OBJECTIVE = "rllm-core/rl"
"""Objective of a run whose pipeline has no stage of an objective."""


def chosen_objectives(registry: Registry, names: str | Sequence[str] | None) -> list[ObjectivePlugin]:
    """Return the objectives with these names, in order.

    Raises:
        ConfigError: no installed objective has the name.
    """
    listed = [names] if isinstance(names, str) else names or ()
    try:
        return [registry.get("objective", str(name)).plugin for name in listed]
    except PluginError as error:
        raise ConfigError(error.code, f"`{OBJECTIVE_KEY}`: {error.message}", error.hint) from error


def objective_layers(registry: Registry, names: str | Sequence[str] | None) -> list[Layer]:
    """Return the default values of objectives, as layers under the user's values."""
    return [
        layer_from_dotted(each.defaults, f"objective {each.name}", Tier.ENVIRONMENT)
        for each in chosen_objectives(registry, names)
        if each.defaults
    ]
