"""Build the context of a run for backends, trackers and stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rllm.planning.plan import RunPlan
from rllm.runs.run_directory import RunDirectory
from rllm_core.algorithms.options import clamp_tasks_per_batch
from rllm_core.contracts.backend import Backend, RunContext
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.estimator import ALWAYS_FILLED, FILLED_BY_STAGES
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.teacher import Teacher, TeacherSetup
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.errors import PluginError, failures_as
from rllm_core.rollout.runner import RolloutRunner


def run_context(plan: RunPlan, total_steps: int) -> RunContext:
    """Return the run's context for the backend."""
    return RunContext(
        config=plan.config,
        backend_config=plan.composed.backend_config,
        seed=plan.config.rllm.trainer.seed,
        total_steps=total_steps,
        needs=plan.needs - ALWAYS_FILLED - FILLED_BY_STAGES,
        engine=plan.engine,
        renderer=plan.renderer,
        calls_tools=plan.workflow.plugin.calls_tools,
        versions_served=plan.versions_served,
        overlaps=plan.batches_ahead > 0 and not plan.config.rllm.trainer.val_only,
    )


def tracked_run(plan: RunPlan, directory: RunDirectory) -> TrackedRun:
    """Return the run for trackers, and for observers that use the run's engine."""
    trainer = plan.config.rllm.trainer
    return TrackedRun(
        directory=directory.path,
        project_name=trainer.project_name,
        experiment_name=trainer.experiment_name,
        config=plan.composed.printable_tree,
        origins=plan.composed.origins,
        shown_metrics={name: label for each in plan.objectives for name, label in each.plugin.shown_metrics.items()},
    )


def stage_context(
    plan: RunPlan,
    backend: Backend,
    runner: RolloutRunner,
    engine: RolloutEngine,
    *,
    tasks: int,
    log: Callable[[int, Mapping[str, float]], None],
) -> StageContext:
    """Return the context for the stages of a step.

    Args:
        tasks: number of training tasks.
        log: function that passes the metrics of a step to the trackers.
    """
    rejection = plan.rejection
    return StageContext(
        config=plan.config,
        seed=plan.config.rllm.trainer.seed,
        backend=backend,
        runner=runner,
        grouping=plan.grouping,
        rejection_name=rejection.registered.qualified_name,
        rejection=rejection.registered.load()(clamp_tasks_per_batch(rejection.params, tasks)),
        needs=plan.needs,
        estimator_of=plan.estimators.get,
        loss_of=plan.losses.get,
        log=log,
        max_context=engine.max_context,
        teacher=_make_teacher(plan, backend, engine.renderer),
        traces_tokens=plan.recorded == "tokens" and plan.backend.plugin.capabilities.token_trace,
    )


def _make_teacher(plan: RunPlan, backend: Backend, renderer: Renderer) -> Teacher | None:
    """Return the run's teacher. None if it has none.

    Raises:
        ConfigError: the teacher cannot score the run's tokens.
    """
    chosen, config = plan.teacher, plan.config
    if chosen is None:
        return None
    setup = TeacherSetup(
        backend=backend,
        renderer=renderer,
        temperature=config.sampling.train.temperature,
        seed=config.rllm.trainer.seed,
    )
    with failures_as(PluginError, f"Teacher {chosen.qualified_name}"):
        teacher: Teacher = chosen.registered.load()(chosen.params, setup)
    return teacher
