"""RunPlan: every name in a config resolved to a plugin with its options. `rllm.planning.planner` makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from rllm.config.compose import Composed
from rllm.planning.row_objective import RowObjective
from rllm.planning.scoring import WeightedReward
from rllm_core.contracts.agent import AgentPlugin
from rllm_core.contracts.backend import BackendPlugin
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.engine import EnginePlugin, Overlap
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.contracts.renderer import RendererPlugin
from rllm_core.contracts.sampler import SamplerPlugin
from rllm_core.contracts.sandbox import SandboxPlugin
from rllm_core.contracts.teacher import TeacherPlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.pipeline.graph import StageChoice
from rllm_core.schema.run_config import RunConfig

PluginT = TypeVar("PluginT")
ESTIMATOR_KEY = "rllm.algorithm.adv_estimator"


@dataclass(frozen=True)
class ByRole(Generic[PluginT]):
    """One choice for all roles, and others for some."""

    default: PluginT
    by_role: Mapping[str, PluginT] = field(default_factory=dict)

    def get(self, role: str) -> PluginT:
        return self.by_role.get(role, self.default)

    def __iter__(self) -> Iterator[PluginT]:
        yield self.default
        yield from self.by_role.values()


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything that a run will use."""

    composed: Composed
    backend: Registered[BackendPlugin[Any]]
    engine: PluginChoice[EnginePlugin[Any]] | None
    """The rollout engine that the backend hosts; None: its own."""
    renderer: PluginChoice[RendererPlugin[Any]]
    environment: PluginChoice[EnvironmentPlugin[Any]] | None
    train_dataset: PluginChoice[DatasetPlugin[Any]] | None
    """Source of the training tasks. None: the environment."""
    val_dataset: PluginChoice[DatasetPlugin[Any]] | None
    sampler: PluginChoice[SamplerPlugin[Any]]
    teacher: PluginChoice[TeacherPlugin[Any]] | None
    """The model from which stages can learn. None if the run has none."""
    sandbox: PluginChoice[SandboxPlugin[Any]] | None
    """The sandbox in which the workflow runs commands. None if the run has none."""
    rewards: tuple[WeightedReward, ...]
    agent: PluginChoice[AgentPlugin[Any]]
    workflow: PluginChoice[WorkflowPlugin[Any]]
    grouping: PluginChoice[GroupingPlugin[Any]]
    rejection: PluginChoice[RejectionPlugin[Any]]
    estimators: ByRole[PluginChoice[EstimatorPlugin[Any]]]
    losses: ByRole[PluginChoice[LossPlugin[Any]]]
    """`default` is the loss of `estimators.default`; a role with another estimator has the default loss of that one."""
    trackers: tuple[PluginChoice[TrackerPlugin[Any]], ...]
    observers: tuple[PluginChoice[ObserverPlugin[Any]], ...]
    stages: tuple[StageChoice, ...]
    objectives: tuple[Registered[ObjectivePlugin], ...]
    """The objectives that have a stage in `stages`, in this order. The default objective if there is none."""
    warnings: tuple[str, ...] = ()
    """Warnings about settings that work, but perhaps not as intended."""

    @property
    def config(self) -> RunConfig:
        return self.composed.config

    @property
    def objective(self) -> Registered[ObjectivePlugin]:
        """The objective whose stage comes first."""
        return self.objectives[0]

    @property
    def recorded(self) -> str:
        """The part of every step that is recorded: a tracker's value of `rllm.record`, or ``off`` without one."""
        recording = (entry.params for entry in self.trackers if "record" in type(entry.params).model_fields)
        return next((str(params.record) for params in recording), "off")

    @property
    def full_logprobs(self) -> bool:
        """True if rollouts have log-probs even if top-p or top-k truncates. See `Capabilities.full_logprobs`."""
        own = self.backend.plugin.capabilities
        return own.full_logprobs if self.engine is None else self.engine.plugin.full_logprobs

    @property
    def off_policy(self) -> bool:
        """True if the episodes come from weights other than the trained ones. See `StagePlugin.off_policy`."""
        return any(stage.plugin.off_policy for stage in self.stages)

    @cached_property
    def rows(self) -> RowObjective | None:
        """The objective's rows of data. None if the run learns from rollouts."""
        make_rows = self.objective.load()
        return None if make_rows is None else make_rows(self)

    @property
    def estimates(self) -> bool:
        """True if a stage computes advantages with the run's estimators."""
        return any(ESTIMATOR_KEY in stage.plugin.config_keys for stage in self.stages)

    @property
    def stop_texts(self) -> bool:
        """True if rollouts can stop at strings. See `Capabilities.stop_texts`."""
        return self.backend.plugin.capabilities.stop_texts if self.engine is None else self.engine.plugin.stop_texts

    @property
    def overlap(self) -> frozenset[Overlap]:
        """Weights that can generate rollouts during updates. See `Capabilities.overlap`."""
        return self.backend.plugin.capabilities.overlap if self.engine is None else self.engine.plugin.overlap

    @property
    def batches_ahead(self) -> int:
        """Maximum number of rollout batches generated ahead of training. 0: rollouts and updates alternate."""
        return max(0, self.config.rllm.async_training.staleness - self.rejection.plugin.updates_waited)

    @property
    def versions_served(self) -> int:
        """As `RunContext.versions_served`."""
        return 1 + self.batches_ahead if self.config.rllm.async_training.pins_weights else 1

    @property
    def tasks_per_step(self) -> int:
        """Number of tasks that a step draws at a time. A step draws fewer if fewer are left."""
        rejection = self.config.rllm.rejection_sample
        return self.config.data.train_batch_size * (rejection.multiplier if rejection.enable else 1)

    def max_batch_tasks(self, tasks: int) -> int:
        """Return the maximum number of tasks in a rollout batch of a run with `tasks` training tasks, at least 1."""
        return min(self.tasks_per_step, max(tasks, 1))

    @property
    def needs(self) -> frozenset[str]:
        """Columns that estimators, losses, loss terms and stages of the run need. See `EstimatorPlugin.needs`."""
        estimators = self.estimators if self.estimates else ()
        needs = frozenset[str]().union(*(entry.plugin.needs for entry in (*estimators, *self.losses, *self.stages)))
        return needs | {"ref_logprobs"} if self.config.rllm.algorithm.kl_beta else needs

    @property
    def chosen(self) -> list[PluginChoice[Any]]:
        """Every choice of a plugin in the run, except the backend."""
        one_or_none = (self.engine, self.environment, self.train_dataset, self.val_dataset, self.teacher, self.sandbox)
        of_rollouts = (self.rejection, self.workflow, self.agent) if self.rows is None else ()
        return [
            *(*(self.estimators if self.estimates else ()), *of_rollouts, *self.losses, self.grouping, self.renderer),
            self.sampler,
            *(entry for entry in one_or_none if entry),
            *(entry.chosen for entry in self.rewards),
            *(*self.trackers, *self.observers, *self.stages),
        ]

    def registered(self) -> list[Registered[Any]]:
        """Every plugin the run uses, once each."""
        found: list[Registered[Any]] = [self.backend, self.objective, *(entry.registered for entry in self.chosen)]
        return list({(entry.kind, entry.qualified_name): entry for entry in found}.values())
