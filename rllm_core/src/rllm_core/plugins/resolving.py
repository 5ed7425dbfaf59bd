"""Lookup of a plugin by its qualified name, in a process to which no plugin spec can be sent."""

from __future__ import annotations

from functools import cache
from typing import Any

from rllm_core.contracts.chosen import Registered
from rllm_core.errors import PluginError
from rllm_core.plugins.discovery import IN_PROCESS
from rllm_core.plugins.registry import Registry


@cache
def resolve(kind: str, qualified_name: str) -> Registered[Any]:
    """Return the plugin ``distribution/name``. Only plugins of that package and of the core are imported.

    Raises:
        PluginError: the plugin is not installed here, is broken, or was registered by a different program.
    """
    distribution = qualified_name.rpartition("/")[0]
    try:
        return Registry.load(allow={distribution}).get(kind, qualified_name)
    except PluginError as error:
        if distribution != IN_PROCESS:
            raise
        raise PluginError(
            "plugin-of-other-program",
            f"The {kind} {qualified_name!r} was registered by the running program; worker processes do not know it.",
            f"Put it into a package and install that on every machine: `rllm plugins new NAME --kind {kind}`.",
        ) from error
