"""Contract tests for plugin authors: one class per kind, subclassed with the plugin's name.

    from rllm_plugin_kit import EstimatorContract

    class TestMedian(EstimatorContract):
        name = "median"
        options = ({}, {"scale": 2.0})

Classes are imported when they are asked for, so that only the contract of losses imports torch. Needs pytest
(``rllm-core[testing]``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_plugin_kit.agent import AgentContract
    from rllm_plugin_kit.backend import BackendContract
    from rllm_plugin_kit.dataset import DatasetContract
    from rllm_plugin_kit.engine import EngineContract
    from rllm_plugin_kit.environment import EnvironmentContract
    from rllm_plugin_kit.estimator import EstimatorContract
    from rllm_plugin_kit.fakes import stage_context
    from rllm_plugin_kit.grouping import GroupingContract
    from rllm_plugin_kit.loss import LossContract
    from rllm_plugin_kit.objective import ObjectiveContract
    from rllm_plugin_kit.observer import ObserverContract
    from rllm_plugin_kit.rejection import RejectionContract
    from rllm_plugin_kit.renderer import RendererContract
    from rllm_plugin_kit.reward import RewardContract
    from rllm_plugin_kit.sampler import SamplerContract
    from rllm_plugin_kit.sandbox import SandboxContract
    from rllm_plugin_kit.stage import StageContract
    from rllm_plugin_kit.teacher import TeacherContract
    from rllm_plugin_kit.tracker import TrackerContract
    from rllm_plugin_kit.workflow import WorkflowContract

__all__ = [
    "AgentContract",
    "BackendContract",
    "DatasetContract",
    "EngineContract",
    "EnvironmentContract",
    "EstimatorContract",
    "GroupingContract",
    "LossContract",
    "ObjectiveContract",
    "ObserverContract",
    "RejectionContract",
    "RendererContract",
    "RewardContract",
    "SamplerContract",
    "SandboxContract",
    "StageContract",
    "TeacherContract",
    "TrackerContract",
    "WorkflowContract",
    "stage_context",
]

_MODULES = {name: name.removesuffix("Contract").lower() for name in __all__} | {"stage_context": "fakes"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
