"""Run the rollouts that are missing, as many at a time as the run allows, and hands over each as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from rllm.evaluation.plans import Job
from rllm.training import open_runner, validation_order
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
    missing = missing_rollouts(job, done)
    async with open_runner(plan, engine) as runner:
        workers = [
            asyncio.ensure_future(_run(job, runner, missing, on_finished))
            for _ in range(min(plan.config.rllm.workflow.n_parallel_tasks, job.rollouts))
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
    for task in job.tasks:
        yield from ((task, index) for index in range(job.rollouts_per_task) if (task.id, index) not in done)


async def _run(
    job: Job,
    runner: RolloutRunner,
    missing: Iterator[tuple[Task, int]],
    on_finished: Callable[[FinishedRollout], None],
) -> None:
    for task, index in missing:
        episode = await runner.rollout(validation_order([task], job.evaluation.plan.config), task, index)
        on_finished(FinishedRollout(task, episode))
