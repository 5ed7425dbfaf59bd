"""The kinds of plugins: what belongs to each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rllm_core.contracts import (
    AgentPlugin,
    BackendPlugin,
    DatasetPlugin,
    EnginePlugin,
    EnvironmentPlugin,
    EstimatorPlugin,
    GroupingPlugin,
    LossPlugin,
    ObserverPlugin,
    Plugin,
    RejectionPlugin,
    RendererPlugin,
    RewardPlugin,
    StagePlugin,
    TrackerPlugin,
    WorkflowPlugin,
)


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
        "reward": Kind("rllm_rewards", RewardPlugin),
        "renderer": Kind("rllm_renderers", RendererPlugin),
        "dataset": Kind("rllm_datasets", DatasetPlugin),
        "tracker": Kind("rllm_trackers", TrackerPlugin),
        "observer": Kind("rllm_observers", ObserverPlugin),
    }
)
"""All kinds by name, in the order they are listed."""
