"""Evaluate tasks of inspect for a whole run: rollouts add their samples, and get them back with scores."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inspect_ai import SampleSource, Task, enqueue_sample, eval_async, task_with
from inspect_ai._util.rich import truncate_traceback
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample, _log
from inspect_ai.log._samples import active_samples
from inspect_ai.model import Model

from rllm_core.contracts.environment import Split
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.workflow import OpenedRun
from rllm_core.errors import RolloutError
from rllm_envs.hosted import read_params
from rllm_envs.inspect.loading import limit_turns, list_samples, load_models, load_task
from rllm_envs.inspect.model import NoRolloutError
from rllm_envs.inspect.options import NAME, POLICY, InspectParams
from rllm_envs.sessions import SeatSessions, serve_gateway
from rllm_gateway.running.rollout_session import OpenedGateway
from rllm_gateway.sessions.link import OpenedSession

SECONDS_TO_CLOSE = 30
MANY = 1_000_000
"""No limit of inspect's own: rllm limits the number of rollouts at the same time."""


class Feed(SampleSource):
    """The dataset of a running task. It has no samples until rollouts add them."""

    def __init__(self, running: Evaluation) -> None:
        self._running = running
        self._context: Context | None = None
        self._ready, self._wake = asyncio.Event(), asyncio.Event()
        self._is_closed = False

    async def wait_until_ready(self) -> None:
        await self._ready.wait()

    def add(self, sample: Sample, epoch: int) -> None:
        """Start a sample. inspect finds its task by the context that the task asked for samples in."""
        assert self._context is not None, "the task has not started"
        self._context.run(enqueue_sample, sample, epoch=epoch)
        self._wake.set()

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()

    async def next_samples(self) -> list[Sample] | None:
        if self._context is None:
            self._context = copy_context()
            self._ready.set()
        await self._wake.wait()
        self._wake.clear()
        return None if self._is_closed else []

    async def sample_complete(self, sample: EvalSample) -> None:
        self._running.complete(sample)


@dataclass(eq=False)
class RunningSample:
    """A sample that runs, and the sessions of its rollout."""

    sessions: SeatSessions
    result: asyncio.Future[EvalSample]
    seats: set[str] = field(default_factory=set)


class Evaluation:
    """One evaluation of inspect, because a process can run only one at a time. Each rollout is an epoch of a sample."""

    def __init__(self) -> None:
        self._epochs = itertools.count(1)
        self._samples: dict[int, RunningSample] = {}
        self._feeds: dict[Split, tuple[Feed, dict[str, Sample]]] = {}
        self._job: asyncio.Task[None] | None = None
        self._cancelled: set[int] = set()

    async def find_session(self, epoch: int, seat: str) -> OpenedSession:
        """Return the session of a seat of a rollout. See `FindSession`.

        Raises:
            NoRolloutError: the rollout has ended.
        """
        running = self._samples.get(epoch)
        if running is not None and seat not in running.seats:
            running.seats.add(seat)
            running.sessions.add_seat(seat, "" if seat == POLICY else seat)
        session = None if running is None else await running.sessions.find(seat)
        if session is None:
            raise NoRolloutError("The rollout of this model call has ended.")
        return session

    async def run(self, split: Split, sample: str, sessions: SeatSessions) -> EvalSample:
        """Run a sample to its end, and return it with its scores or its error.

        Raises:
            RolloutError: inspect stopped the evaluation.
        """
        assert self._job is not None
        feed, samples = self._feeds[split]
        epoch, result = next(self._epochs), asyncio.get_running_loop().create_future()
        self._samples[epoch] = RunningSample(sessions, result)
        try:
            if self._job.done():
                raise self._stopped()
            feed.add(samples[sample], epoch)
            return await result
        finally:
            del self._samples[epoch]
            if result.cancelled():
                if not self._cancelled:
                    asyncio.get_running_loop().call_soon(self._interrupt_cancelled)
                self._cancelled.add(epoch)

    def complete(self, sample: EvalSample) -> None:
        """Hand a sample to the rollout that waits for it."""
        running = self._samples.get(sample.epoch)
        if running is not None and not running.result.done():
            running.result.set_result(sample)

    def _interrupt_cancelled(self) -> None:
        """Stop the samples that no rollout waits for."""
        for active in active_samples():
            if active.epoch in self._cancelled and not active.completed:
                active.interrupt("error")
        self._cancelled.clear()

    @asynccontextmanager
    async def open(self, params: InspectParams, max_turns: int, log_dir: Path) -> AsyncIterator[None]:
        """Evaluate the tasks of the options until the context ends."""
        changes: dict[Split, dict[str, object]] = {"val": {}, "train": params.train_args or {}}
        tasks: dict[Split, Task] = {}
        models = load_models(params, self.find_session)
        for split, changed in changes.items():
            if split == "train" and params.train_args is None:
                self._feeds[split] = self._feeds["val"]
                continue
            loaded = load_task(params, changed, models)
            self._feeds[split] = (Feed(self), list_samples(loaded))
            tasks[split] = task_with(limit_turns(loaded, max_turns), dataset=self._feeds[split][0], epochs=1)
        with _keep_logging():
            self._job = asyncio.create_task(self._evaluate([*tasks.values()], models.policy, params, log_dir))
            self._job.add_done_callback(self._end)
            ready = asyncio.create_task(self._wait_until_ready())
            await asyncio.wait({self._job, ready}, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        try:
            if self._job.done():
                raise self._stopped()
            yield
        finally:
            for feed, _ in self._feeds.values():
                feed.close()
            self._cancelled.update(self._samples)
            self._interrupt_cancelled()
            await asyncio.wait({self._job}, timeout=SECONDS_TO_CLOSE)
            self._job.cancel()
            await asyncio.wait({self._job})
            await models.close()

    async def _wait_until_ready(self) -> None:
        for feed, _ in self._feeds.values():
            await feed.wait_until_ready()

    async def _evaluate(self, tasks: list[Task], policy: Model, params: InspectParams, log_dir: Path) -> None:
        with _plain_tracebacks():
            logs = await eval_async(
                tasks,
                model=policy,
                sandbox=params.sandbox,
                log_dir=str(params.log_dir or log_dir),
                log_samples=params.log_dir is not None,
                log_realtime=False,
                log_level="error",
                score_display=False,
                fail_on_error=False,
                max_samples=MANY,
                max_tasks=len(tasks),
                acp_server=None,
                ctl_server=False,
            )
        for log in logs:
            if log.error is not None:
                raise RuntimeError(log.error.message)

    def _end(self, job: asyncio.Task[None]) -> None:
        """Fail the rollouts that still wait."""
        for running in self._samples.values():
            if not running.result.done():
                running.result.set_exception(self._stopped())

    def _stopped(self) -> RolloutError:
        assert self._job is not None
        error = None if self._job.cancelled() else self._job.exception()
        cause = "no cause" if error is None else f"{type(error).__name__}: {error}"
        return RolloutError("environment-failed", f"inspect stopped the evaluation: {cause}.")


@dataclass(frozen=True, kw_only=True)
class OpenedTask:
    """The objects that all rollouts of a run share."""

    gateway: OpenedGateway
    evaluation: Evaluation
    params: InspectParams


@asynccontextmanager
async def open_task(
    run: OpenedRun, params: InspectParams, gateway: OpenedGateway, directory: Path
) -> AsyncIterator[OpenedTask]:
    """Evaluate a task until the context ends.

    Args:
        run: the run.
        params: options of the environment.
        gateway: the gateway of the run.
        directory: directory for logs if the user sets none.

    Raises:
        ConfigError: see `load_task`.
        RolloutError: inspect cannot start the evaluation.
    """
    evaluation = Evaluation()
    async with evaluation.open(params, run.config.rllm.agent.max_steps, directory / "inspect"):
        yield OpenedTask(gateway=gateway, evaluation=evaluation, params=params)


@asynccontextmanager
async def open_run(run: OpenedRun, params: NoParams) -> AsyncIterator[OpenedTask]:
    """Evaluate the task of a run with the run's gateway, until the context ends. See `open_task`."""
    options = read_params(run.config, NAME, InspectParams, "task")
    async with serve_gateway(run) as (gateway, directory), open_task(run, options, gateway, directory) as opened:
        yield opened


@contextmanager
def _keep_logging() -> Iterator[None]:
    """Restore handlers and levels of this process, which inspect replaces when an evaluation starts."""
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:], sys.excepthook = handlers, hook
        root.setLevel(level)


@contextmanager
def _plain_tracebacks() -> Iterator[None]:
    """Keep tracebacks of samples without colors, because colors take longer than most samples."""

    def format_plain(*error: Any) -> tuple[str, str]:
        text, _ = truncate_traceback(*error)
        return text, text

    names = vars(_log)
    colored = names["format_traceback"]
    names["format_traceback"] = format_plain
    try:
        yield
    finally:
        names["format_traceback"] = colored
