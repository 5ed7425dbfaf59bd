"""Plays the attempts that are missing, as many at a time as the run allows, and hands over each as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from rllm.evaluation.plans import PlayPlan
from rllm.evaluation.recording import Recorder, Scored
from rllm.training import open_runner, validation_order
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.data.types import Episode, Task
from rllm_core.rollout.calls import call
from rllm_core.rollout.runner import RolloutRunner


@dataclass(frozen=True, kw_only=True)
class Job:
    """One environment to play."""

    name: str
    play: PlayPlan
    tasks: Sequence[Task]

    @property
    def rollouts_per_task(self) -> int:
        return self.play.plan.config.rllm.rollout.n_val

    @property
    def rollouts(self) -> int:
        """At all tasks together."""
        return len(self.tasks) * self.rollouts_per_task


@dataclass(frozen=True)
class Played:
    """A finished attempt."""

    task: Task
    episode: Episode
    scored: Sequence[Scored]
    """Inputs and results of its rewards. Empty if the run has no rewards."""


async def play_job(
    job: Job, engine: RolloutEngine, done: Container[tuple[str, int]], on_played: Callable[[Played], None]
) -> None:
    """Run all missing rollouts of a job.

    Args:
        job: environment, plan and tasks.
        engine: the engine that samples.
        done: task id and number of rollouts that exist already.
        on_played: called with every finished rollout, in any order. An exception in it stops the evaluation.

    Raises:
        RolloutError, BackendError: as `RolloutRunner.run`.
    """
    plan = job.play.plan
    # Use a thread, because a reward may start processes and Ctrl-C must work in the meantime.
    recorder = await call(Recorder, plan.rewards, blocking=True) if plan.rewards else None
    make_score = None if recorder is None else recorder.start_try
    missing = missing_rollouts(job, done)
    async with open_runner(plan, engine, make_score=make_score) as runner:
        players = [
            asyncio.ensure_future(_play(job, runner, recorder, missing, on_played))
            for _ in range(min(plan.config.rllm.workflow.n_parallel_tasks, job.rollouts))
        ]
        try:
            await asyncio.gather(*players)
        finally:
            for player in players:
                player.cancel()
            await asyncio.gather(*players, return_exceptions=True)


def missing_rollouts(job: Job, done: Container[tuple[str, int]]) -> Iterator[tuple[Task, int]]:
    """Tasks and numbers of attempts in the order in which they begin.

    All attempts at a task come before those at the next: tasks that are made lazily are made once.
    """
    for task in job.tasks:
        yield from ((task, index) for index in range(job.rollouts_per_task) if (task.id, index) not in done)


async def _play(
    job: Job,
    runner: RolloutRunner,
    recorder: Recorder | None,
    missing: Iterator[tuple[Task, int]],
    on_played: Callable[[Played], None],
) -> None:
    for task, index in missing:
        scored: list[Scored] = []
        if recorder is not None:
            recorder.heard.set(scored)
        episode = await runner.rollout(validation_order([task], job.play.plan.config), task, index)
        on_played(Played(task, episode, tuple(scored)))
