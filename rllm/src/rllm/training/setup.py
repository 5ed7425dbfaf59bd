"""Make a plan's tasks, and its runner with workflow, agent and environment.

`GroupRunner` is the runner for rewards that compare the rollouts of a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rllm.planning.plan import RunPlan
from rllm.planning.scoring import PartialScore, Scorer
from rllm_core.contracts.agent import Agent
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.environment import Environment, Split
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.contracts.workflow import OpenedRun, Workflow, WorkflowContext
from rllm_core.data.tasks import LazyTasks, RowIds, task_ids
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError, PluginError, RllmError, describe_error, describe_function, failures_as
from rllm_core.notices import warn_once
from rllm_core.rollout.calls import call
from rllm_core.rollout.runner import PerRolloutEngine, RolloutRunner, RolloutSetup, RunnerSettings
from rllm_core.rollout.waits import open_rollout
from rllm_core.schema.section import OptionRole, find_options

MakeScoredWorkflow = Callable[..., Workflow]
"""Makes the workflow of a `RolloutSetup`, with `score` of its context."""


@dataclass(eq=False)
class _Member:
    scorer: Scorer
    partial: PartialScore | None = None
    workflow: Workflow | None = None

    async def score(self, rollout: Rollout) -> None:
        """Compute the rewards that need no other rollout. The workflow receives the sum by `add_score`."""
        self.partial = await self.scorer.score_rollout(rollout)


class GroupRunner(RolloutRunner):
    """Runs all rollouts of a task to their end, and then adds their scores.

    The rewards that compare rollouts run outside the slots and the time limits of rollouts, so a waiting rollout
    occupies no slot. Rollouts that ended before they were scored are not in the group.
    """

    def __init__(self, make_workflow: MakeScoredWorkflow, settings: RunnerSettings, scorer: Scorer) -> None:
        super().__init__(partial(make_workflow, score=scorer), settings)
        self._make_scored = make_workflow
        self._scorer = scorer

    async def run(self, order: RolloutRequest) -> list[Episode]:
        """Return all episodes, as `RolloutRunner.run`."""
        groups = [asyncio.ensure_future(self._run_group(replace(order, tasks=[task]))) for task in order.tasks]
        try:
            return [episode for group in await asyncio.gather(*groups) for episode in group]
        finally:
            for future in groups:
                future.cancel()
            await asyncio.gather(*groups, return_exceptions=True)

    async def _run_group(self, order: RolloutRequest) -> list[Episode]:
        members: dict[str, _Member] = {}

        def make_member(setup: RolloutSetup) -> Workflow:
            # A new try of a rollout replaces the earlier one.
            member = members[setup.uid] = _Member(self._scorer)
            member.workflow = self._make_scored(setup, score=member.score)
            return member.workflow

        episodes = await RolloutRunner(make_member, self._settings, self._slots).run(order)
        scored = [
            (member.workflow, member.partial)
            for episode in episodes
            if (member := members[episode.id]).workflow and member.partial and member.workflow.episode is episode
        ]
        if scored:
            with open_rollout(f"{order.tasks[0].id}:*"):
                scores = await self._scorer.score_group([each for _, each in scored])
            for (workflow, _), score in zip(scored, scores, strict=True):
                workflow.add_score(score)
        return episodes


ScoreRollout = Callable[[Rollout], Awaitable[Score | None]]


def load_tasks(plan: RunPlan, split: Split) -> Sequence[Task]:
    """Return the tasks of a split, from its dataset or from the environment.

    A run that trains on a dataset, without an environment, has no validation tasks unless it has a validation dataset.

    Raises:
        ConfigError: the run has neither a dataset nor an environment, or two tasks have the same id.
    """
    dataset = plan.train_dataset if split == "train" else plan.val_dataset
    if dataset is not None:
        give = dataset.registered.load()
        name = f"Dataset {dataset.plugin.name!r}"
        return _check_tasks(name, name, split, lambda: give(dataset.params))
    if plan.environment is not None:
        environment, params = plan.environment.registered.load(), plan.environment.params
        name, where = f"Environment {plan.environment.plugin.name!r}", describe_function(environment.tasks)
        return _check_tasks(name, f"{name}: {where}", split, lambda: environment.tasks(split, params))
    if split == "val" and plan.train_dataset is not None:
        return []
    raise ConfigError(
        "no-environment",
        "The run has neither an environment nor a dataset.",
        "Choose an environment: `rllm train NAME` or `rllm eval NAME`. `rllm plugins list environment` lists them. "
        f"Or set a dataset: data.{split}_dataset={{name: jsonl, path: FILE}}, and a workflow for its tasks.",
    )


def load_local_tasks(plan: RunPlan, split: Split) -> Sequence[Task] | None:
    """Return the tasks of a split. None if its dataset is read over a network.

    Raises:
        ConfigError: as `load_tasks`.
    """
    dataset = plan.train_dataset if split == "train" else plan.val_dataset
    is_remote = None if dataset is None else dataset.plugin.is_remote
    return None if dataset and is_remote and is_remote(dataset.params) else load_tasks(plan, split)


def _check_tasks(name: str, where: str, split: Split, give: Callable[[], Any]) -> Sequence[Task]:
    """Return the result of `give`, after checking that it contains tasks with unique ids. Lazy tasks stay lazy."""
    try:
        given = give()
        tasks: Sequence[Task] | None = given if isinstance(given, LazyTasks | None) else list(given)
    except RllmError:
        raise
    except Exception as error:
        said = describe_error(error)
        raise PluginError(
            "tasks-failed",
            f"{name} could not give its {split} tasks: {said}.",
            "Correct that line." if ", line " in said else "Run the same command with --debug to see where.",
        ) from error
    strangers = [task for task in tasks if not isinstance(task, Task)] if isinstance(tasks, list) else []
    if strangers or tasks is None:
        what = f"{strangers[0]!r:.80} as a {split} task" if strangers else f"None as {split} tasks"
        remedy = 'Return a list of tasks, for example [Task(id="1", data={"question": "1+1"})].'
        raise PluginError("bad-task", f"{where} returned {what}.", remedy)
    seen: set[str] = set()
    ids = task_ids(tasks)
    for task_id in () if isinstance(ids, RowIds) else ids:  # numbers differ, and a set of millions takes memory
        if task_id in seen:
            raise ConfigError(
                "duplicate-task-id",
                f"{where} returned two {split} tasks with id {task_id!r}.",
                "Give each task its own id, because its seed, group and episodes get their names from it.",
            )
        seen.add(task_id)
    return tasks


async def create_scorer(plan: RunPlan) -> Scorer | None:
    """Return the scorer for the plan's rewards. None if it has no rewards.

    It is created in a thread, because a reward may start processes. A cancellation then works during the wait.

    Raises:
        RllmError: a reward cannot be created.
    """
    return await call(Scorer, plan.rewards, blocking=True) if plan.rewards else None


@asynccontextmanager
async def open_runner(
    plan: RunPlan,
    engine: RolloutEngine,
    directory: Path | None = None,
    score: ScoreRollout | None = None,
    *,
    replaces: bool = False,
) -> AsyncIterator[RolloutRunner]:
    """Open a runner that gives every rollout its own workflow, agent and environment.

    The resources that rollouts share (`WorkflowPlugin.open`) are open until the context exits.

    Args:
        plan: the run's plan.
        engine: the engine that samples.
        directory: the run directory. None if nothing is trained.
        score: scores rollouts with the plan's rewards. None: `create_scorer` makes it.
        replaces: see `OpenedRun.replaces`.
    """
    opening = plan.workflow.plugin.open
    sandbox = plan.sandbox
    run = OpenedRun(
        config=plan.config,
        engine=engine,
        directory=directory,
        stop_texts=plan.stop_texts,
        sandbox=None if sandbox is None else partial(sandbox.registered.load(), sandbox.params),
        replaces=replaces,
    )
    async with AsyncExitStack() as stack:
        with failures_as(PluginError, f"`open` of workflow {plan.workflow.qualified_name}"):
            shared = None if opening is None else opening(run, plan.workflow.params)
            resource = None if shared is None else await stack.enter_async_context(shared)
        yield _runner(plan, engine, resource, score or await create_scorer(plan))


def _runner(plan: RunPlan, engine: RolloutEngine, resource: Any, score: ScoreRollout | None) -> RolloutRunner:
    config = plan.config
    workflow_class = plan.workflow.registered.load()
    workflow_args = plan.workflow.params.model_dump()
    make_agent: Callable[[], Agent] = partial(plan.agent.registered.load(), plan.agent.params)
    make_environment: Callable[[], Environment] | None = None
    if plan.environment is not None:
        make_environment = partial(plan.environment.registered.load(), plan.environment.params)

    def make_workflow(rollout: RolloutSetup, score: ScoreRollout | None = score) -> Workflow:
        context = WorkflowContext(
            engine=PerRolloutEngine(engine),
            sampling=rollout.sampling,
            max_prompt_length=config.data.max_prompt_length,
            max_response_length=config.data.max_response_length,
            max_steps=config.rllm.agent.max_steps,
            accumulate_reasoning=config.rllm.accumulate_reasoning,
            make_agent=make_agent,
            make_environment=make_environment,
            environment_blocks=plan.environment is None or plan.environment.plugin.blocking,
            label=rollout.label,
            rollout=rollout.number,
            score=score,
            resource=resource,
        )
        workflow: Workflow = workflow_class(context, **workflow_args)
        return workflow

    settings = RunnerSettings(
        n_parallel_tasks=config.rllm.workflow.n_parallel_tasks,
        retry_limit=config.rllm.workflow.retry_limit,
        raise_on_error=config.rllm.workflow.raise_on_error,
        trajectory_timeout=_time_limit(plan),
    )
    if isinstance(score, Scorer) and score.has_groups:
        if getattr(workflow_class, "add_score", Workflow.add_score) is not Workflow.add_score:
            return GroupRunner(make_workflow, settings, score)
        warn_once(
            f"Workflow {plan.workflow.plugin.name!r} has no method add_score. So rewards that compare the rollouts of "
            "a task get one rollout at a time."
        )
    return RolloutRunner(make_workflow, settings)


def _time_limit(plan: RunPlan) -> float | None:
    """Return the time limit of a rollout in seconds: the smaller of the general limit and the workflow's option."""
    limit, params = plan.config.rllm.agent.trajectory_timeout, plan.workflow.params
    own = [getattr(params, name) for name in find_options(type(params), OptionRole.ROLLOUT_SECONDS)]
    return min([*own, *([] if limit is None else [limit])], default=None)
