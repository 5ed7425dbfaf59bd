"""One evaluation: run every environment with its engine until all rollouts are done or the user stops it.

Environments that sample alike share an engine, which loads a model once. Progress goes to standard error, because
standard output is the result.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from rllm.evaluation.games import Games
from rllm.evaluation.metrics import Outcome, build_outcome
from rllm.evaluation.plans import Job
from rllm.evaluation.rollouts import FinishedRollout, missing_rollouts, run_job
from rllm.evaluation.stopping import run_until_signal
from rllm.planning import RunPlan
from rllm.planning.rendering_check import check_rendering
from rllm_core.contracts.backend import Backend, RunContext
from rllm_core.contracts.engine import RolloutEngine

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rllm.evaluation.saving import SaveDirectory


class Session:
    """Runs jobs and collects how their rollouts ended."""

    def __init__(self, jobs: Sequence[Job], keeper: SaveDirectory | None = None, games: Games | None = None) -> None:
        self._jobs = jobs
        self._keeper = keeper
        self._games = games
        self.outcomes: dict[str, list[Outcome]] = {
            job.name: [] if keeper is None else list(keeper.finished_outcomes(job)) for job in jobs
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
        asyncio.run(run_until_signal(self._run()))

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


OF_ENGINE = ("backend", "profile", "renderer", "disable_thinking")
"""Keys of ``rllm`` that an engine depends on."""

OF_TASKS = ("train_", "val_")
"""How keys of ``data`` begin that an engine does not depend on."""


@asynccontextmanager
async def open_engine(plan: RunPlan) -> AsyncIterator[RolloutEngine]:
    """Start the engine of the plan's backend, with the model unchanged, and close the backend afterwards.

    Raises:
        BackendError: the backend cannot start.
    """
    backend: Backend = plan.backend.load()()
    try:
        yield await backend.start(
            RunContext(
                config=plan.config,
                backend_config=plan.composed.backend_config,
                seed=plan.config.rllm.trainer.seed,
                total_steps=1,
                renderer=plan.renderer,
                calls_tools=plan.workflow.plugin.calls_tools,
            )
        )
    finally:
        await backend.close()


async def with_engines(jobs: Sequence[Job]) -> AsyncGenerator[tuple[Job, RolloutEngine], None]:
    """Yield every job with its engine, which stays open until the next job is requested."""
    for _, alike in groupby(jobs, key=lambda job: engine_key(job.evaluation.plan)):
        together = list(alike)
        async with open_engine(together[0].evaluation.plan) as engine:
            for job in together:
                yield job, engine


def engine_key(plan: RunPlan) -> str:
    """Return the settings that an engine depends on, as text: the backend's sections and the core keys it reads."""
    tree = plan.composed.tree
    parts: dict[str, Any] = {name: section for name, section in tree.items() if name not in ("rllm", "data")}
    parts["data"] = {key: value for key, value in tree["data"].items() if not key.startswith(OF_TASKS)}
    parts["rllm"] = {key: tree["rllm"].get(key) for key in OF_ENGINE}
    return json.dumps([parts, plan.config.rllm.trainer.seed], sort_keys=True, default=str)


SECONDS_BETWEEN_LINES = 5.0
"""A log file should not get a line for every step of the work."""


class ProgressReport:
    """One bar for each part of the work."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._name, self._total = "", 0
        self._last_line = time.monotonic()

    def __enter__(self) -> ProgressReport:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(compact=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._bars.start()
        return self

    def begin(self, name: str, total: int) -> None:
        """Start a part of the work."""
        self._name, self._total = name, total
        if self._bars is not None:
            self._bar = self._bars.add_task(name, total=total, note="")

    def show(self, done: int, note: str = "") -> None:
        """Report how much of the part is done."""
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=done, note=note)
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            click.echo(f"{self._name}: {done} of {self._total}" + (f", {note}" if note else ""), err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
