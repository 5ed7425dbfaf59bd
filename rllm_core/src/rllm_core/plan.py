"""RunPlan: every name in a config resolved to a plugin with its options, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rllm_core.config.compose import Composed
from rllm_core.config.schema import AlgorithmSection, Choice, RunConfig
from rllm_core.contracts.backend import BackendPlugin, LossChoice
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.observer import ObserverPlugin
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.errors import ConfigError
from rllm_core.pipeline.graph import ChosenStage, order_stages
from rllm_core.plugins.choice import Chosen, choose
from rllm_core.plugins.registry import Registered, Registry

PluginT = TypeVar("PluginT")
FALLBACK_LOSS = "importance_sampling"


@dataclass(frozen=True)
class ByRole(Generic[PluginT]):
    """One choice for all roles, and others for some."""

    default: PluginT
    by_role: Mapping[str, PluginT] = field(default_factory=dict)

    def of(self, role: str) -> PluginT:
        return self.by_role.get(role, self.default)

    def __iter__(self) -> Iterator[PluginT]:
        yield self.default
        yield from self.by_role.values()


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run will use."""

    composed: Composed
    backend: Registered[BackendPlugin[Any]]
    environment: Chosen[EnvironmentPlugin[Any]] | None
    workflow: Chosen[WorkflowPlugin[Any]]
    grouping: Chosen[GroupingPlugin[Any]]
    rejection: Chosen[RejectionPlugin[Any]]
    estimators: ByRole[Chosen[EstimatorPlugin[Any]]]
    losses: ByRole[Chosen[LossPlugin[Any]]]
    """`default` is the loss of `estimators.default`; roles with an estimator of their own have its default loss."""
    trackers: tuple[Chosen[TrackerPlugin[Any]], ...]
    observers: tuple[Chosen[ObserverPlugin[Any]], ...]
    stages: tuple[ChosenStage, ...]

    @property
    def config(self) -> RunConfig:
        return self.composed.config

    def warnings(self) -> list[str]:
        """What will work, but perhaps not as meant."""
        lines = []
        if self.config.rllm.rollout.n == 1 and self.config.rllm.transform.grouping == "task_role":
            alone = sorted({entry.plugin.name for entry in self.estimators if entry.plugin.scope == "group"})
            if alone:
                lines.append(
                    f"rllm.rollout.n=1 leaves estimator {' and '.join(alone)} groups of one: "
                    "without a baseline the advantage is the reward itself"
                )
        return lines

    def loss_of(self, role: str) -> LossChoice:
        chosen = self.losses.of(role)
        return LossChoice(plugin=chosen.plugin, params=chosen.params, qualified_name=chosen.registered.qualified_name)

    def registered(self) -> list[Registered[Any]]:
        """Every plugin the run uses, once each."""
        chosen: list[Chosen[Any]] = [*self.estimators, *self.losses, self.grouping, self.rejection, self.workflow]
        chosen += [self.environment] if self.environment else []
        chosen += [*self.trackers, *self.observers, *self.stages]
        found = [self.backend, *(entry.registered for entry in chosen)]
        return list({(entry.kind, entry.qualified_name): entry for entry in found}.values())


def make_plan(composed: Composed, registry: Registry) -> RunPlan:
    """Resolve all names.

    Raises:
        ConfigError: a name or option is unknown, or the backend cannot do what is asked.
        PipelineError: the stages do not fit together.
    """
    config = composed.config.rllm
    _refuse_without_effect(composed)
    shared = _shared_options(config.algorithm)

    def pick(kind: str, choice: Choice, where: str) -> Chosen[Any]:
        return choose(registry, kind, choice, where, shared)

    backend = registry.get("backend", config.backend)
    estimators = ByRole(
        pick("estimator", config.algorithm.adv_estimator, "rllm.algorithm.adv_estimator"),
        {
            role: pick("estimator", choice, f"rllm.algorithm.estimator_map.{role}")
            for role, choice in config.algorithm.estimator_map.items()
        },
    )
    losses = _choose_losses(config.algorithm, estimators, pick)
    for loss in losses:
        _check_loss(loss, backend)
    for chosen in (*estimators, *losses):
        _check_needs(chosen, backend)
    environment = None
    if config.env.name:
        environment = pick("environment", _named(config.env.name, config.env.env_args, "rllm.env.env_args"), "rllm.env")
    rejection_options = config.rejection_sample.model_dump(include={"min_partial_solve_tasks", "min_trajs_per_group"})
    return RunPlan(
        composed=composed,
        backend=backend,
        environment=environment,
        workflow=pick(
            "workflow",
            _named(config.workflow.name, config.workflow.workflow_args, "rllm.workflow.workflow_args"),
            "rllm.workflow",
        ),
        grouping=pick("grouping", config.transform.grouping, "rllm.transform.grouping"),
        rejection=choose(
            registry,
            "rejection",
            config.rejection_sample.mode if config.rejection_sample.enable else "none",
            "rllm.rejection_sample.mode",
            rejection_options,
        ),
        estimators=estimators,
        losses=losses,
        trackers=tuple(
            pick("tracker", choice, f"rllm.trainer.logger[{index}]")
            for index, choice in enumerate(config.trainer.logger)
        ),
        observers=tuple(
            pick("observer", choice, f"rllm.trainer.observers[{index}]")
            for index, choice in enumerate(config.trainer.observers)
        ),
        stages=tuple(order_stages(config.pipeline, lambda choice, where: pick("stage", choice, where))),
    )


def _refuse_without_effect(composed: Composed) -> None:
    """A value that is set for something that is switched off would be ignored without a word."""
    chosen = composed.config.rllm.rejection_sample
    changed = [] if chosen.enable else chosen.model_dump(exclude_defaults=True)
    for name in changed:
        key = f"rllm.rejection_sample.{name}"
        raise ConfigError(
            f"{key} (from {composed.origins.get(key, 'its options')}) has no effect "
            "while rllm.rejection_sample.enable is false.",
            "Set rllm.rejection_sample.enable=true as well.",
        )


def _named(name: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A choice whose name and options are separate keys."""
    if "name" in options:
        raise ConfigError(
            f"{where}.name is set to {options['name']!r}, and `name` is no option.", "Set the name beside it."
        )
    return {"name": name, **options}


def _shared_options(algorithm: AlgorithmSection) -> dict[str, Any]:
    """Keys of ``rllm.algorithm`` that plugins of this or another package may have as options of the same name."""
    structure = {
        "adv_estimator",
        "estimator_map",
        "loss_fn",
        "loss_map",
        "entropy",
        "loss_agg_mode",
        "on_missing_reward",
    }
    return algorithm.model_dump(exclude=structure)


def _choose_losses(
    algorithm: AlgorithmSection, estimators: ByRole[Chosen[EstimatorPlugin[Any]]], pick: Any
) -> ByRole[Chosen[LossPlugin[Any]]]:
    """A role's loss: `loss_map`, else `loss_fn`, else the default loss of the role's estimator."""

    def unless_chosen(estimator: Chosen[EstimatorPlugin[Any]]) -> Chosen[LossPlugin[Any]]:
        name = algorithm.loss_fn or estimator.plugin.default_loss or FALLBACK_LOSS
        chosen: Chosen[LossPlugin[Any]] = pick("loss", name, "rllm.algorithm.loss_fn")
        return chosen

    by_role = {role: unless_chosen(estimator) for role, estimator in estimators.by_role.items()}
    for role, choice in algorithm.loss_map.items():
        by_role[role] = pick("loss", choice, f"rllm.algorithm.loss_map.{role}")
    return ByRole(unless_chosen(estimators.default), by_role)


def _check_loss(loss: Chosen[LossPlugin[Any]], backend: Registered[BackendPlugin[Any]]) -> None:
    can = backend.plugin.capabilities
    if not can.custom_losses and loss.plugin.name not in can.losses:
        raise ConfigError(
            f"Backend {backend.name!r} cannot compute loss {loss.plugin.name!r}.",
            f"It knows {', '.join(sorted(can.losses)) or 'none'}; set rllm.algorithm.loss_fn to one of these.",
        )


def _check_needs(
    chosen: Chosen[LossPlugin[Any]] | Chosen[EstimatorPlugin[Any]], backend: Registered[BackendPlugin[Any]]
) -> None:
    kind = chosen.plugin.kind
    missing = chosen.plugin.needs - backend.plugin.capabilities.columns
    if missing:
        raise ConfigError(
            f"{kind.capitalize()} {chosen.plugin.name!r} needs {', '.join(sorted(missing))}; "
            f"backend {backend.name!r} cannot fill that.",
            f"Choose another {kind} or another backend.",
        )
