"""Run the rollouts that are missing, as many at a time as the run allows, and hands over each as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator
from dataclasses import dataclass

from rllm.evaluation.plans import Job
from rllm.training import GroupRunner, open_runner, validation_order
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.data.types import Episode, Task
from rllm_core.rollout.runner import RolloutRunner


@dataclass(frozen=True)
class FinishedRollout:
    """A finished rollout."""

    task: Task
    episode: Episode


async def run_job(
    job: Job, engine: RolloutEngine, done: Container[tuple[str, int]], on_finished: Callable[[FinishedRollout], None]
) -> None:
    """Run all missing rollouts of a job.

    Args:
        job: environment, plan and tasks.
        engine: the engine that samples.
        done: task id and number of rollouts that exist already.
        on_finished: called with every finished rollout, in any order. An exception in it stops the evaluation.

    Raises:
        RolloutError, BackendError: as `RolloutRunner.run`.
    """
    plan = job.evaluation.plan
    async with open_runner(plan, engine) as runner:
        # Rewards that compare the rollouts of a task need all of them.
        runs = _task_runs(job, runner, done) if isinstance(runner, GroupRunner) else _rollout_runs(job, runner, done)

        async def work() -> None:
            for run in runs:
                for finished in await run:
                    on_finished(finished)

        workers = [
            asyncio.ensure_future(work()) for _ in range(min(plan.config.rllm.workflow.n_parallel_tasks, job.rollouts))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


def missing_rollouts(job: Job, done: Container[tuple[str, int]]) -> Iterator[tuple[Task, int]]:
    """Yield tasks and numbers of rollouts in the order in which they begin.

    All rollouts of a task come before the rollouts of the next task. So each lazy task is created only once.
    """
    for task, missing in _missing_by_task(job, done):
        yield from ((task, index) for index in missing)


def _missing_by_task(job: Job, done: Container[tuple[str, int]]) -> Iterator[tuple[Task, list[int]]]:
    for task in job.tasks:
        if missing := [index for index in range(job.rollouts_per_task) if (task.id, index) not in done]:
            yield task, missing


def _rollout_runs(
    job: Job, runner: RolloutRunner, done: Container[tuple[str, int]]
) -> Iterator[Awaitable[list[FinishedRollout]]]:
    async def run(task: Task, index: int) -> list[FinishedRollout]:
        order = validation_order([task], job.evaluation.plan.config)
        return [FinishedRollout(task, await runner.rollout(order, task, index))]

    return (run(task, index) for task, index in missing_rollouts(job, done))


def _task_runs(
    job: Job, runner: RolloutRunner, done: Container[tuple[str, int]]
) -> Iterator[Awaitable[list[FinishedRollout]]]:
    """Yield one run for each task with a missing rollout.

    Rollouts that exist already run again, with the same seeds, so that the group is complete.
    """

    async def run(task: Task, missing: list[int]) -> list[FinishedRollout]:
        episodes = await runner.run(validation_order([task], job.evaluation.plan.config))
        return [FinishedRollout(task, episodes[index]) for index in missing]

    return (run(task, missing) for task, missing in _missing_by_task(job, done))
