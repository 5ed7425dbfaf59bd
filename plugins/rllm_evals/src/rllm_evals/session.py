"""One evaluation: every environment with its engine, until all is played or somebody stops it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

from rllm_evals.engines import with_engines
from rllm_evals.outcome import Outcome, outcome_of
from rllm_evals.playing import Job, Played, play_job
from rllm_evals.progress import PlayProgress

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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

    def __init__(self, jobs: Sequence[Job], keeper: Keeper | None = None) -> None:
        self._jobs = jobs
        self._keeper = keeper
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

    def run(self) -> int | None:
        """Play what is missing. Returns the signal that ended it early; None: everything is played."""
        return asyncio.run(self._run())

    async def _run(self) -> int | None:
        playing = asyncio.ensure_future(self._play())
        with _received_signals(playing.cancel) as received:
            try:
                await playing
            except asyncio.CancelledError:
                if not received:
                    raise
        return received[0] if received else None

    async def _play(self) -> None:
        jobs = [job for job in self._jobs if self._missing(job)]
        with PlayProgress() as progress:
            async with aclosing(with_engines(jobs)) as opened:
                async for job, engine in opened:
                    outcomes = self.outcomes[job.name]
                    done = {(outcome.task_id, outcome.index) for outcome in outcomes}
                    correct = sum(outcome.correct for outcome in outcomes)
                    progress.begin(job.name, job.attempts, len(done), correct)
                    await play_job(job, engine, done, self._collecting(job, progress))

    def _collecting(self, job: Job, progress: PlayProgress) -> Callable[[Played], None]:
        def collect(played: Played) -> None:
            if self._keeper is not None:
                self._keeper.keep(job, played)
            outcome = outcome_of(played.episode)
            self.outcomes[job.name].append(outcome)
            progress.advance(outcome.correct)

        return collect

    def _missing(self, job: Job) -> int:
        done = sum(outcome.index < job.attempts_per_task for outcome in self.outcomes[job.name])
        return job.attempts - done


@contextmanager
def _received_signals(stop: Callable[[], object]) -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM calls `stop`; the next does what it did before. Yields what was received."""
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        received.append(number)
        for each in SIGNALS:
            loop.remove_signal_handler(each)
        stop()

    main = threading.current_thread() is threading.main_thread()
    for number in SIGNALS if main else ():
        loop.add_signal_handler(number, handle, number)
    try:
        yield received
    finally:
        for number in SIGNALS if main else ():
            loop.remove_signal_handler(number)
