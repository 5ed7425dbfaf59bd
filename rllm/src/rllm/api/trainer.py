"""The front door from Python: AgentTrainer, and UnifiedTrainer for those who want to hold the loop in their hands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from rllm.api.python_plugins import (
    GroupingByHook,
    GroupingHook,
    backend_plugin,
    estimator_choice,
    known_options,
    plain_options,
    rLLMAdvantageEstimator,
    workflow_plugin,
)
from rllm.config.choices import registry_for
from rllm.config.compose import Composed, compose
from rllm.config.from_python import PythonConfig, layer_from_python, remove_packaged_values, replaced_in_script
from rllm.config.layers import Layer, layer_from_keys
from rllm.config.merge import merge_layers
from rllm.config.paths import ABSENT, value_at
from rllm.config.problems import wrong_value
from rllm.planning.plan import RunPlan
from rllm.planning.preflight import check_to_train
from rllm.rows.task_rows import tasks_from_rows
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm.training.starting import open_run, plan_run
from rllm_core.contracts.backend import Backend, BackendPlugin
from rllm_core.contracts.environment import Split
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, RllmError, hide_tracebacks
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

__all__ = ["AgentTrainer", "UnifiedTrainer", "rLLMAdvantageEstimator"]


CONFIG_INSTEAD = {
    "agent_flow": "Set in `config`: rllm.workflow.name=agent and rllm.workflow.workflow_args.agent=FILE.py:FUNCTION.",
    "evaluator": "Return the reward from your agent, or set rllm.reward=[{name: python, function: FILE.py:FUNCTION}].",
}
"""Arguments of rLLM's trainer that this one lacks, with the config keys to set instead."""
Dataset = Iterable[Task | Mapping[str, Any]]
"""Tasks, or rows: mappings with whatever a task's `data` shall hold. ``id`` and ``data_source`` name the task."""


class UnifiedTrainer:
    """One training run, set up from Python. The constructor checks everything. `fit` loads the model.

    Args:
        backend_cls: name of a backend, a subclass of `Backend`, or a `BackendPlugin`. None: ``rllm.backend``.
        config: a mapping, an OmegaConf object, or the path of a YAML file. Missing keys have their defaults.
        workflow_class: the workflow that runs a rollout. None: ``rllm.workflow.name``.
        train_dataset: training tasks. None: ``data.train_dataset``, or the environment's training tasks.
        val_dataset: validation tasks. None: ``data.val_dataset``, or the environment's validation tasks.
        workflow_args: constructor arguments of the workflow, which may be any objects if `workflow_class` is given.
        backend_args: the backend's own config sections, such as ``{"training": {"learning_rate": 1e-4}}``.
        traj_grouping_hook: ``hook(episodes, transform_config, compact_filtering_config=None)`` that returns groups.
        traj_group_adv_estimator_map: estimator by group role. A value may be a pair (estimator, loss).
        observers: objects that observe the training loop.
        resume: continue the run from its newest checkpoint: the named one, or the environment's latest.
        overwrite: replace the run: the named one, or the environment's latest.

    Raises:
        ConfigError: the configuration is invalid, or the directory contains a run already.
    """

    @hide_tracebacks()
    def __init__(
        self,
        backend_cls: str | type[Backend] | BackendPlugin[Any] | None = None,
        config: PythonConfig = None,
        workflow_class: type[Workflow] | None = None,
        train_dataset: Dataset | None = None,
        val_dataset: Dataset | None = None,
        workflow_args: Mapping[str, Any] | None = None,
        backend_args: Mapping[str, Any] | None = None,
        traj_grouping_hook: GroupingHook | None = None,
        traj_group_adv_estimator_map: Mapping[str, Any] | None = None,
        *,
        observers: Sequence[Observer] = (),
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        hook = GroupingByHook(traj_grouping_hook) if traj_grouping_hook is not None else None
        parts = _Parts(
            backend=backend_cls,
            backend_args=_mapping("backend_args", backend_args),
            workflow_class=workflow_class,
            workflow_args=_named_arguments(_mapping("workflow_args", workflow_args)),
            hook=hook,
            estimators=_mapping("traj_group_adv_estimator_map", traj_group_adv_estimator_map),
        )

        def make_plan() -> RunPlan:
            return _plan(layer_from_python(config), parts, resume=resume, overwrite=overwrite)

        self.plan = make_plan()
        train_tasks, val_tasks = self._tasks("train", train_dataset), self._tasks("val", val_dataset)
        check_to_train(self.plan, train_tasks, val_tasks)
        self.plan, self._directory = open_run(self.plan, make_plan, resume=resume, overwrite=overwrite)
        if hook is not None:
            hook.config = self.plan.config
        try:
            self._loop = TrainingLoop(
                self.plan,
                self._directory,
                train_tasks=train_tasks,
                val_tasks=val_tasks,
                observers=observers,
                resume=resume,
            )
        except BaseException:
            self._directory.close()
            raise

    @property
    def global_step(self) -> int:
        """Steps finished so far."""
        return self._loop.finished_steps

    @property
    def total_steps(self) -> int:
        return self._loop.total_steps

    @property
    def run_directory(self) -> RunDirectory:
        """Directory of the run, with metrics, checkpoints and the configuration."""
        return self._directory

    @hide_tracebacks()
    def fit(self) -> dict[str, float]:
        """Train to the end, and return the metrics of the last validation. In a notebook await `fit_async`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.fit_async())
        raise RllmError(
            "event-loop-running",
            "Training cannot begin here: this thread already runs an event loop, as notebooks do.",
            "Write `await UnifiedTrainer(...).fit_async()`.",
        )

    async def fit_async(self) -> dict[str, float]:
        """Run `fit` for callers with an event loop."""
        return await self._loop.fit_async()

    def stop(self) -> None:
        """Let `fit` end after the current step, with a checkpoint. May be called from another thread."""
        self._loop.stop()

    def shutdown(self) -> None:
        """Release the run directory. Safe to call more than once."""
        self._directory.close()

    def _tasks(self, split: Split, given: Dataset | None) -> Sequence[Task]:
        if given is not None:
            _refuse_second(f"data.{split}_dataset", self.plan, f"{split}_dataset")
            return tasks_from_rows(given, f"{split}_dataset")
        if split == "val" and self.plan.environment is None and self.plan.val_dataset is None:
            return ()
        return load_tasks(self.plan, split)


class AgentTrainer:
    """Trains an agent: ``AgentTrainer(config, backend="local", workflow_class=MyWorkflow, …).train()``.

    The arguments are those for `UnifiedTrainer`, except that `backend` replaces `backend_cls`.

    Raises:
        ConfigError: an argument does not exist here, or `UnifiedTrainer` raises the error.
    """

    @hide_tracebacks()
    def __init__(
        self,
        config: PythonConfig = None,
        backend: str | type[Backend] | BackendPlugin[Any] | None = None,
        workflow_class: type[Workflow] | None = None,
        workflow_args: Mapping[str, Any] | None = None,
        train_dataset: Dataset | None = None,
        val_dataset: Dataset | None = None,
        traj_grouping_hook: GroupingHook | None = None,
        traj_group_adv_estimator_map: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        _check_arguments_exist(more)
        self.trainer = UnifiedTrainer(
            backend,
            config,
            workflow_class,
            train_dataset,
            val_dataset,
            workflow_args,
            traj_grouping_hook=traj_grouping_hook,
            traj_group_adv_estimator_map=traj_group_adv_estimator_map,
            **more,
        )

    def train(self) -> dict[str, float]:
        """Train to the end, and return the metrics of the last validation."""
        try:
            return self.trainer.fit()
        finally:
            self.trainer.shutdown()


@dataclass(frozen=True)
class _Parts:
    """Parts of the run that the caller chooses with arguments of the trainer."""

    backend: str | type[Backend] | BackendPlugin[Any] | None
    backend_args: Mapping[str, Any]
    workflow_class: type[Workflow] | None
    workflow_args: Mapping[str, Any]
    hook: GroupingByHook | None
    estimators: Mapping[str, Any]

    def as_layers(self, registry: Registry) -> list[Layer]:
        """Register the classes and functions, and return layers that choose them by name."""
        chosen: dict[str, Any] = {}
        if isinstance(self.backend, str):
            chosen["rllm.backend"] = self.backend
        elif self.backend is not None:
            chosen["rllm.backend"] = registry.add(backend_plugin(self.backend)).qualified_name
        options: Mapping[str, Any] = self.workflow_args
        if self.workflow_class is not None:
            # The class receives all arguments directly, because a configuration cannot contain every object. So a list
            # is also the program's own list. Plain values are in the configuration too, so that it is saved correctly.
            plugin = workflow_plugin(self.workflow_class, self._own_arguments())
            chosen["rllm.workflow.name"] = registry.add(plugin).qualified_name
            options = {
                **plain_options(self._own_arguments()),
                **known_options(self.workflow_class, self.workflow_args),
            }
        if options:
            chosen["rllm.workflow.workflow_args"] = dict(options)
        if self.hook is not None:
            chosen["rllm.transform.grouping"] = registry.add(self.hook.as_plugin()).qualified_name
        if self.estimators:
            chosen["rllm.algorithm.estimator_map"] = {
                str(role): estimator_choice(value) for role, value in self.estimators.items()
            }
        return [Layer("backend_args", dict(self.backend_args)), layer_from_keys(chosen, "the trainer's arguments")]

    def refuse_argument_given_twice(self, given: Sequence[Layer]) -> None:
        """Raise ConfigError if the configuration also sets an argument of the workflow's class."""
        merged = merge_layers(given, [RunConfig])
        for name in self._own_arguments():
            path = ("rllm", "workflow", "workflow_args", name)
            if (value := value_at(merged.tree, path)) not in (ABSENT, None):
                raise _given_twice(wrong_value(path, value, merged.origin(path)), f"workflow_args[{name!r}]")

    def _own_arguments(self) -> dict[str, Any]:
        """Return the arguments that only the workflow's class has. Empty if the workflow is chosen by name."""
        if self.workflow_class is None:
            return {}
        known = known_options(self.workflow_class, self.workflow_args)
        return {name: value for name, value in self.workflow_args.items() if name not in known}


def _plan(given: Layer, parts: _Parts, *, resume: bool, overwrite: bool) -> RunPlan:
    def compose_over(lower_layers: Sequence[Layer]) -> tuple[Composed, Registry]:
        registry = registry_for([*lower_layers, given])
        own = remove_packaged_values(given, registry)
        parts.refuse_argument_given_twice(own)
        return compose(registry, [*lower_layers, *own, *parts.as_layers(registry)]), registry

    plan = plan_run(compose_over, resume=resume, overwrite=overwrite)
    return replace(plan, warnings=(*plan.warnings, *replaced_in_script(plan.composed)))


def _check_arguments_exist(arguments: Mapping[str, Any]) -> None:
    known = signature(UnifiedTrainer).parameters
    for name in arguments:
        if name not in known:
            raise ConfigError(
                "unknown-argument",
                f"AgentTrainer has no argument {name!r}.",
                CONFIG_INSTEAD.get(name, f"Remove it. The arguments are: {', '.join(('backend', *list(known)[1:]))}."),
            )


def _mapping(argument: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError("not-a-mapping", f"{argument} is {value!r:.80}.", "Give a mapping, such as a dictionary.")
    return value


def _named_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in arguments:
        if not isinstance(name, str):
            raise ConfigError(
                "key-not-text",
                f"workflow_args has the key {name!r}, which is not text.",
                "Its keys are names of arguments of the workflow's constructor.",
            )
    return arguments


def _refuse_second(key: str, plan: RunPlan, argument: str) -> None:
    """Raise ConfigError if an argument of the trainer would replace a value that the user configured."""
    if plan.composed.is_by_user(key) and plan.composed.value(key) is not None:
        raise _given_twice(plan.composed.describe(key), argument)


def _given_twice(given: str, argument: str) -> ConfigError:
    return ConfigError(
        "conflicting-keys",
        f"{given}, and {argument} is given to the trainer.",
        f"Remove {argument}, or the value in the configuration.",
    )
