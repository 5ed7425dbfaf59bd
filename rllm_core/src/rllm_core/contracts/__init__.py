"""What authors of plugins write against: one file per kind, and what plugins are given.

    from rllm_core.contracts import Advantages, EstimatorPlugin, Params
    from rllm_core.plugins import hookimpl

Files are imported when a name of theirs is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_core.contracts.agent import Agent as Agent
    from rllm_core.contracts.agent import AgentPlugin as AgentPlugin
    from rllm_core.contracts.backend import Backend as Backend
    from rllm_core.contracts.backend import BackendPlugin as BackendPlugin
    from rllm_core.contracts.backend import Capabilities as Capabilities
    from rllm_core.contracts.backend import DerivedKey as DerivedKey
    from rllm_core.contracts.backend import KlTerm as KlTerm
    from rllm_core.contracts.backend import LossChoice as LossChoice
    from rllm_core.contracts.backend import RolloutCorrection as RolloutCorrection
    from rllm_core.contracts.backend import RunContext as RunContext
    from rllm_core.contracts.backend import SharedKey as SharedKey
    from rllm_core.contracts.backend import UpdatePlan as UpdatePlan
    from rllm_core.contracts.backend import recomputes_old_logprobs as recomputes_old_logprobs
    from rllm_core.contracts.chosen import Chosen as Chosen
    from rllm_core.contracts.chosen import Registered as Registered
    from rllm_core.contracts.dataset import Dataset as Dataset
    from rllm_core.contracts.dataset import DatasetPlugin as DatasetPlugin
    from rllm_core.contracts.engine import Completion as Completion
    from rllm_core.contracts.engine import EngineChoice as EngineChoice
    from rllm_core.contracts.engine import EnginePlugin as EnginePlugin
    from rllm_core.contracts.engine import EngineSetup as EngineSetup
    from rllm_core.contracts.engine import HostedEngine as HostedEngine
    from rllm_core.contracts.engine import RolloutEngine as RolloutEngine
    from rllm_core.contracts.engine import SamplingParams as SamplingParams
    from rllm_core.contracts.environment import Environment as Environment
    from rllm_core.contracts.environment import EnvironmentPlugin as EnvironmentPlugin
    from rllm_core.contracts.environment import Outcome as Outcome
    from rllm_core.contracts.estimator import AdvantageEstimator as AdvantageEstimator
    from rllm_core.contracts.estimator import AdvantageInput as AdvantageInput
    from rllm_core.contracts.estimator import Advantages as Advantages
    from rllm_core.contracts.estimator import EstimatorPlugin as EstimatorPlugin
    from rllm_core.contracts.grouping import Grouping as Grouping
    from rllm_core.contracts.grouping import GroupingPlugin as GroupingPlugin
    from rllm_core.contracts.loss import LossInput as LossInput
    from rllm_core.contracts.loss import LossPlugin as LossPlugin
    from rllm_core.contracts.loss import PolicyLoss as PolicyLoss
    from rllm_core.contracts.observer import Observer as Observer
    from rllm_core.contracts.observer import ObserverPlugin as ObserverPlugin
    from rllm_core.contracts.plugin import NoParams as NoParams
    from rllm_core.contracts.plugin import Params as Params
    from rllm_core.contracts.plugin import Plugin as Plugin
    from rllm_core.contracts.rejection import RejectionMode as RejectionMode
    from rllm_core.contracts.rejection import RejectionPlugin as RejectionPlugin
    from rllm_core.contracts.rejection import Verdict as Verdict
    from rllm_core.contracts.renderer import Renderer as Renderer
    from rllm_core.contracts.renderer import RendererPlugin as RendererPlugin
    from rllm_core.contracts.renderer import RendererSetup as RendererSetup
    from rllm_core.contracts.rollout import RolloutOrder as RolloutOrder
    from rllm_core.contracts.rollout import Runner as Runner
    from rllm_core.contracts.stage import Stage as Stage
    from rllm_core.contracts.stage import StagePlugin as StagePlugin
    from rllm_core.contracts.stage_context import StageContext as StageContext
    from rllm_core.contracts.tracker import TrackedRun as TrackedRun
    from rllm_core.contracts.tracker import Tracker as Tracker
    from rllm_core.contracts.tracker import TrackerPlugin as TrackerPlugin
    from rllm_core.contracts.train_step import TrainStep as TrainStep
    from rllm_core.contracts.workflow import OpenedRun as OpenedRun
    from rllm_core.contracts.workflow import Workflow as Workflow
    from rllm_core.contracts.workflow import WorkflowContext as WorkflowContext
    from rllm_core.contracts.workflow import WorkflowPlugin as WorkflowPlugin

_NAMES = {
    "agent": ("Agent", "AgentPlugin"),
    "backend": (
        "Capabilities",
        "LossChoice",
        "KlTerm",
        "RolloutCorrection",
        "UpdatePlan",
        "recomputes_old_logprobs",
        "RunContext",
        "SharedKey",
        "DerivedKey",
        "Backend",
        "BackendPlugin",
    ),
    "chosen": ("Registered", "Chosen"),
    "dataset": ("Dataset", "DatasetPlugin"),
    "engine": (
        "SamplingParams",
        "Completion",
        "RolloutEngine",
        "EngineSetup",
        "HostedEngine",
        "EngineChoice",
        "EnginePlugin",
    ),
    "environment": ("Outcome", "Environment", "EnvironmentPlugin"),
    "estimator": ("AdvantageInput", "Advantages", "AdvantageEstimator", "EstimatorPlugin"),
    "grouping": ("Grouping", "GroupingPlugin"),
    "loss": ("LossInput", "PolicyLoss", "LossPlugin"),
    "observer": ("Observer", "ObserverPlugin"),
    "plugin": ("Params", "NoParams", "Plugin"),
    "rejection": ("Verdict", "RejectionMode", "RejectionPlugin"),
    "renderer": ("Renderer", "RendererPlugin", "RendererSetup"),
    "rollout": ("RolloutOrder", "Runner"),
    "stage": ("Stage", "StagePlugin"),
    "stage_context": ("StageContext",),
    "tracker": ("TrackedRun", "Tracker", "TrackerPlugin"),
    "train_step": ("TrainStep",),
    "workflow": ("OpenedRun", "WorkflowContext", "Workflow", "WorkflowPlugin"),
}
_FILE_OF = {name: file for file, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FILE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_FILE_OF})
