"""From a plan to what plays it: the tasks, and the runner with its workflow and environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rllm_core.contracts.engine import RolloutEngine, SamplingParams
from rllm_core.contracts.environment import Environment, Split
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.errors import ConfigError, PluginError, RllmError
from rllm_core.plan import RunPlan
from rllm_core.rollout.runner import RolloutRunner, RunnerSettings
from rllm_core.types import Task


def tasks_of(plan: RunPlan, split: Split) -> Sequence[Task]:
    """The environment's tasks of a split.

    Raises:
        ConfigError: the run names no environment, or the environment has two tasks of one id.
    """
    if plan.environment is None:
        raise ConfigError(
            "No environment is named.",
            "Name one: `rllm train NAME`. `rllm plugins list --kind environment` shows what is installed.",
        )
    environment = plan.environment.registered.load()
    name = f"Environment {plan.environment.plugin.name!r}"
    try:
        tasks = list(environment.tasks(split, plan.environment.params))
    except RllmError:
        raise
    except Exception as error:
        raise PluginError(f"{name} could not give its {split} tasks: {type(error).__name__}: {error}.") from error
    strangers = [task for task in tasks if not isinstance(task, Task)]
    if strangers:
        raise PluginError(f"{name} gave {strangers[0]!r:.80} as a {split} task.", "Return Task records.")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ConfigError(
                f"{name} has two {split} tasks with id {task.id!r}.",
                "Ids must differ: seeds, groups and episodes are named by them.",
            )
        seen.add(task.id)
    return tasks


def make_runner(plan: RunPlan, engine: RolloutEngine) -> RolloutRunner:
    """A runner that gives every attempt a workflow and an environment of its own."""
    config = plan.config
    workflow_class = plan.workflow.registered.load()
    workflow_args = plan.workflow.params.model_dump()
    make_environment = _environment_maker(plan)
    blocks = plan.environment.plugin.blocking if plan.environment else True

    def make_workflow(sampling: SamplingParams) -> Workflow:
        context = WorkflowContext(
            engine=engine,
            sampling=sampling,
            max_prompt_length=config.data.max_prompt_length,
            max_response_length=config.data.max_response_length,
            max_steps=config.rllm.agent.max_steps,
            make_environment=make_environment,
            environment_blocks=blocks,
        )
        workflow: Workflow = workflow_class(context, **workflow_args)
        return workflow

    settings = RunnerSettings(
        n_parallel_tasks=config.rllm.workflow.n_parallel_tasks,
        retry_limit=config.rllm.workflow.retry_limit,
        raise_on_error=config.rllm.workflow.raise_on_error,
        trajectory_timeout=config.rllm.agent.trajectory_timeout,
    )
    return RolloutRunner(make_workflow, settings)


def _environment_maker(plan: RunPlan) -> Callable[[], Environment] | None:
    if plan.environment is None:
        return None
    chosen = plan.environment
    environment = chosen.registered.load()
    return lambda: environment(chosen.params)
