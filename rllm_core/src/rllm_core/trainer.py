"""The front door from Python: AgentTrainer, and UnifiedTrainer for those who want to hold the loop in their hands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rllm_core.config.compose import allowed_plugins, compose
from rllm_core.config.from_python import PythonConfig, layer_from_python, without_packaged
from rllm_core.config.layers import Layer, layer_from_dotted
from rllm_core.config.problems import show_value
from rllm_core.contracts.backend import Backend, BackendPlugin
from rllm_core.contracts.environment import Split
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.workflow import Workflow
from rllm_core.errors import ConfigError
from rllm_core.plan import RunPlan
from rllm_core.planning import make_plan
from rllm_core.plugins.registry import Registry
from rllm_core.python_plugins import (
    GroupingByHook,
    GroupingHook,
    backend_plugin,
    estimator_choice,
    known_options,
    rLLMAdvantageEstimator,
    workflow_plugin,
)
from rllm_core.run_folder import RunFolder
from rllm_core.runner_setup import tasks_of
from rllm_core.task_files import tasks_from_rows
from rllm_core.training_loop import TrainingLoop
from rllm_core.types import Task

__all__ = ["AgentTrainer", "UnifiedTrainer", "rLLMAdvantageEstimator"]


Dataset = Iterable[Task | Mapping[str, Any]]
"""Tasks, or rows: mappings with whatever a task's `data` shall hold. ``id`` and ``data_source`` name the task."""


class UnifiedTrainer:
    """One run, set up from Python. Everything is checked here; nothing is loaded before `fit`.

    Args:
        backend_cls: name of a backend, a subclass of `Backend`, or a `BackendPlugin`; None: ``rllm.backend``.
        config: a mapping, an OmegaConf object, or the path of a YAML file; what it leaves out has its default.
        workflow_class: the workflow that makes an attempt; None: ``rllm.workflow.name``.
        train_dataset: training tasks; None: ``data.train_dataset``, or those of the environment.
        val_dataset: validation tasks; None: ``data.val_dataset``, or those of the environment.
        workflow_args: constructor arguments of the workflow, which may be any objects if `workflow_class` is given.
        backend_args: the backend's own config sections, such as ``{"training": {"learning_rate": 1e-4}}``.
        traj_grouping_hook: ``hook(episodes, transform_config, compact_filtering_config=None)`` that returns groups.
        traj_group_adv_estimator_map: estimator by group role; a value may be a pair (estimator, loss).
        observers: what shall watch the loop.
        resume: go on with the run in the folder, from its newest checkpoint, if there is one.
        overwrite: replace the run in the folder, if there is one.

    Raises:
        ConfigError: something in the configuration is wrong, or the folder holds a run already.
    """

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
        self.plan = _plan(
            config,
            backend_cls,
            backend_args or {},
            workflow_class,
            workflow_args or {},
            hook,
            traj_group_adv_estimator_map or {},
        )
        if hook is not None:
            hook.config = self.plan.config
        train_tasks, val_tasks = self._tasks("train", train_dataset), self._tasks("val", val_dataset)
        self._folder = RunFolder.open(self.plan.config.rllm.trainer, resume=resume, overwrite=overwrite)
        try:
            self._loop = TrainingLoop(
                self.plan,
                self._folder,
                train_tasks=train_tasks,
                val_tasks=val_tasks,
                observers=observers,
                resume=resume,
            )
        except BaseException:
            self._folder.close()
            raise

    @property
    def global_step(self) -> int:
        """Steps finished so far."""
        return self._loop.finished_steps

    @property
    def total_steps(self) -> int:
        return self._loop.total_steps

    @property
    def run_folder(self) -> RunFolder:
        """Where metrics, checkpoints and the configuration are kept."""
        return self._folder

    def fit(self) -> dict[str, float]:
        """Train to the end, and return the figures of the last validation. In a notebook await `fit_async`."""
        return asyncio.run(self.fit_async())

    async def fit_async(self) -> dict[str, float]:
        """`fit` for callers with an event loop."""
        return await self._loop.fit_async()

    def stop(self) -> None:
        """Let `fit` end after the current step, with a checkpoint. May be called from another thread."""
        self._loop.stop()

    def shutdown(self) -> None:
        """Release the run folder. Safe to call more than once."""
        self._folder.close()

    def _tasks(self, split: Split, given: Dataset | None) -> Sequence[Task]:
        if given is not None:
            _refuse_second(f"data.{split}_dataset", self.plan, f"{split}_dataset")
            return tasks_from_rows(given, f"{split}_dataset")
        if split == "val" and self.plan.environment is None and self.plan.val_dataset is None:
            return ()
        return tasks_of(self.plan, split)


class AgentTrainer:
    """Trains an agent: ``AgentTrainer(config, backend="local", workflow_class=MyWorkflow, …).train()``.

    Takes what `UnifiedTrainer` takes, with `backend` in place of `backend_cls`.
    """

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
        """Train to the end, and return the figures of the last validation."""
        try:
            return self.trainer.fit()
        finally:
            self.trainer.shutdown()


def _plan(
    config: PythonConfig,
    backend: str | type[Backend] | BackendPlugin[Any] | None,
    backend_args: Mapping[str, Any],
    workflow_class: type[Workflow] | None,
    workflow_args: Mapping[str, Any],
    hook: GroupingByHook | None,
    estimators: Mapping[str, Any],
) -> RunPlan:
    given = layer_from_python(config)
    registry = Registry.load(allow=allowed_plugins([given]))
    chosen: dict[str, Any] = {}
    if isinstance(backend, str):
        chosen["rllm.backend"] = backend
    elif backend is not None:
        chosen["rllm.backend"] = registry.add(backend_plugin(backend)).qualified_name
    options: Mapping[str, Any] = workflow_args
    if workflow_class is not None:
        options = known_options(workflow_class, workflow_args)
        objects = {name: value for name, value in workflow_args.items() if name not in options}
        chosen["rllm.workflow.name"] = registry.add(workflow_plugin(workflow_class, objects)).qualified_name
    if options:
        chosen["rllm.workflow.workflow_args"] = dict(options)
    if hook is not None:
        chosen["rllm.transform.grouping"] = registry.add(hook.as_plugin()).qualified_name
    if estimators:
        chosen["rllm.algorithm.estimator_map"] = {
            str(role): estimator_choice(value) for role, value in estimators.items()
        }
    arguments = [Layer("backend_args", dict(backend_args)), layer_from_dotted(chosen, "the trainer's arguments")]
    plan = make_plan(compose(registry, [*without_packaged(given, registry), *arguments]), registry)
    for name in workflow_args.keys() - options.keys():
        _refuse_second(f"rllm.workflow.workflow_args.{name}", plan, f"workflow_args[{name!r}]")
    return plan


def _refuse_second(key: str, plan: RunPlan, argument: str) -> None:
    """A value in the configuration that an argument of the trainer would push aside."""
    names = [name for name in plan.composed.by_user if f"{name}.".startswith(f"{key}.")]
    if names and plan.composed.value(key) is not None:
        raise ConfigError(
            f"`{key}` is {show_value(plan.composed.value(key))} (from {plan.composed.origins[names[0]]}), and "
            f"{argument} is given to the trainer.",
            "Give one of the two.",
        )
