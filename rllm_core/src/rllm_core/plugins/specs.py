"""The hooks a plugin can implement, one per kind. Each takes nothing and returns records of that kind.

A plugin is a module with some of these functions in it, marked ``@hookimpl``, and one line of packaging::

    [project.entry-points."rllm.plugins"]
    rllm-example = "rllm_example.plugin"        # left of the "=": the name of the distribution

The docstring of every hook is such a module, complete; the test suite runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rllm_core.contracts.agent import AgentPlugin
from rllm_core.contracts.backend import BackendPlugin
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.engine import EnginePlugin
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.contracts.plugin import Plugin
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.plugins.algorithm_specs import (
    rllm_estimators,
    rllm_groupings,
    rllm_losses,
    rllm_rejections,
    rllm_stages,
)
from rllm_core.plugins.markers import hookimpl, hookspec
from rllm_core.plugins.run_specs import (
    rllm_agents,
    rllm_backends,
    rllm_datasets,
    rllm_engines,
    rllm_environments,
    rllm_observers,
    rllm_trackers,
    rllm_workflows,
)

__all__ = [
    "KINDS",
    "Kind",
    "hookimpl",
    "hookspec",
    "rllm_agents",
    "rllm_backends",
    "rllm_datasets",
    "rllm_engines",
    "rllm_environments",
    "rllm_estimators",
    "rllm_groupings",
    "rllm_losses",
    "rllm_observers",
    "rllm_rejections",
    "rllm_stages",
    "rllm_trackers",
    "rllm_workflows",
]


class Kind(NamedTuple):
    """What belongs to one kind of plugin."""

    hook: str
    """The function a plugin implements."""
    record: type[Plugin[Any]]
    """The class of what that function returns."""

    @property
    def plural(self) -> str:
        """For sentences: ``estimators``, ``losses``."""
        return self.hook.removeprefix("rllm_")


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "estimator": Kind("rllm_estimators", EstimatorPlugin),
        "loss": Kind("rllm_losses", LossPlugin),
        "grouping": Kind("rllm_groupings", GroupingPlugin),
        "rejection": Kind("rllm_rejections", RejectionPlugin),
        "stage": Kind("rllm_stages", StagePlugin),
        "backend": Kind("rllm_backends", BackendPlugin),
        "engine": Kind("rllm_engines", EnginePlugin),
        "workflow": Kind("rllm_workflows", WorkflowPlugin),
        "agent": Kind("rllm_agents", AgentPlugin),
        "environment": Kind("rllm_environments", EnvironmentPlugin),
        "dataset": Kind("rllm_datasets", DatasetPlugin),
        "tracker": Kind("rllm_trackers", TrackerPlugin),
        "observer": Kind("rllm_observers", ObserverPlugin),
    }
)
"""All kinds by name, in the order they are listed."""
