"""One evaluation: run every environment with its engine until all rollouts are done or the user stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from rllm.evaluation.engines import with_engines
from rllm.evaluation.games import Games
from rllm.evaluation.outcome import Outcome, build_outcome
from rllm.evaluation.progress import ProgressReport
from rllm.evaluation.rollouts import FinishedRollout, Job, missing_rollouts, run_job
from rllm.evaluation.stopping import until_stopped
from rllm.planning.rendering_check import check_rendering

if TYPE_CHECKING:
    from rllm.evaluation.saving import SaveDirectory


class Session:
    """Runs jobs and collects how their rollouts ended."""

    def __init__(self, jobs: Sequence[Job], keeper: SaveDirectory | None = None, games: Games | None = None) -> None:
        self._jobs = jobs
        self._keeper = keeper
        self._games = games
        self.outcomes: dict[str, list[Outcome]] = {
            job.name: [] if keeper is None else list(keeper.done(job)) for job in jobs
        }
        """By environment; grows while it is evaluated."""

    @property
    def finished_count(self) -> int:
        """Number of rollouts that exist."""
        return sum(map(len, self.outcomes.values()))

    @property
    def missing(self) -> int:
        """Number of rollouts that are still missing."""
        return sum(self._missing(job) for job in self._jobs)

    def run(self) -> None:
        """Run the missing rollouts.

        Raises:
            StoppedError: a signal ended it early.
        """
        asyncio.run(until_stopped(self._run()))

    async def _run(self) -> None:
        jobs = [job for job in self._jobs if self._missing(job)]
        with ProgressReport() as progress:
            async with aclosing(with_engines(jobs)) as opened:
                async for job, engine in opened:
                    check_rendering(job.evaluation.plan, engine.renderer, (), job.tasks)
                    outcomes = self.outcomes[job.name]
                    done = {(outcome.task_id, outcome.index) for outcome in outcomes}
                    progress.begin(job.name, job.rollouts)
                    if self._games is not None:
                        self._games.expect(job.name, missing_rollouts(job, done))
                    await run_job(job, engine, done, self._collecting(job, progress))

    def _collecting(self, job: Job, progress: ProgressReport) -> Callable[[FinishedRollout], None]:
        def collect(finished: FinishedRollout) -> None:
            if self._keeper is not None:
                self._keeper.keep(job, finished)
            if self._games is not None:
                self._games.take(job.name, finished)
            outcome = build_outcome(finished.episode)
            outcomes = self.outcomes[job.name]
            outcomes.append(outcome)
            progress.show(len(outcomes), f"solved {sum(each.correct for each in outcomes) / len(outcomes):.1%}")

        return collect

    def _missing(self, job: Job) -> int:
        done = sum(outcome.index < job.rollouts_per_task for outcome in self.outcomes[job.name])
        return job.rollouts - done
