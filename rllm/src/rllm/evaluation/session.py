"""One evaluation: every environment with its engine, until all is played or somebody stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from rllm.evaluation.engines import with_engines
from rllm.evaluation.games import Games
from rllm.evaluation.outcome import Outcome, outcome_of
from rllm.evaluation.playing import Job, Played, missing_rollouts, play_job
from rllm.evaluation.progress import PlayProgress
from rllm.evaluation.stopping import until_stopped


class Keeper(Protocol):
    """Keeps attempts as they end."""

    def done(self, job: Job) -> Sequence[Outcome]:
        """What was kept of an environment before."""
        ...

    def keep(self, job: Job, played: Played) -> None:
        """Keep one more."""
        ...


class Session:
    """Plays jobs and collects how their attempts ended."""

    def __init__(self, jobs: Sequence[Job], keeper: Keeper | None = None, games: Games | None = None) -> None:
        self._jobs = jobs
        self._keeper = keeper
        self._games = games
        self.outcomes: dict[str, list[Outcome]] = {
            job.name: [] if keeper is None else list(keeper.done(job)) for job in jobs
        }
        """By environment; grows while it is played."""

    @property
    def kept(self) -> int:
        """How many attempts there are."""
        return sum(map(len, self.outcomes.values()))

    @property
    def missing(self) -> int:
        """How many attempts are still to be played."""
        return sum(self._missing(job) for job in self._jobs)

    def run(self) -> None:
        """Play what is missing.

        Raises:
            StoppedError: a signal ended it early.
        """
        asyncio.run(until_stopped(self._play()))

    async def _play(self) -> None:
        jobs = [job for job in self._jobs if self._missing(job)]
        with PlayProgress() as progress:
            async with aclosing(with_engines(jobs)) as opened:
                async for job, engine in opened:
                    outcomes = self.outcomes[job.name]
                    done = {(outcome.task_id, outcome.index) for outcome in outcomes}
                    correct = sum(outcome.correct for outcome in outcomes)
                    progress.begin(job.name, job.rollouts, len(done), correct)
                    if self._games is not None:
                        self._games.expect(job.name, missing_rollouts(job, done))
                    await play_job(job, engine, done, self._collecting(job, progress))

    def _collecting(self, job: Job, progress: PlayProgress) -> Callable[[Played], None]:
        def collect(played: Played) -> None:
            if self._keeper is not None:
                self._keeper.keep(job, played)
            if self._games is not None:
                self._games.take(job.name, played)
            outcome = outcome_of(played.episode)
            self.outcomes[job.name].append(outcome)
            progress.advance(outcome.correct)

        return collect

    def _missing(self, job: Job) -> int:
        done = sum(outcome.index < job.rollouts_per_task for outcome in self.outcomes[job.name])
        return job.rollouts - done
