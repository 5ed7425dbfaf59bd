"""RolloutRunner: runs many rollouts concurrently, with limits, retries and timeouts. Episodes have a fixed order."""

from __future__ import annotations

import asyncio
import copy
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, EngineWrapper, RolloutEngine, SamplingParams
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.contracts.workflow import Workflow
from rllm_core.data.types import Episode, Task, TerminationReason
from rllm_core.errors import (
    BackendError,
    ConfigError,
    PipelineError,
    PluginError,
    RllmError,
    RolloutError,
    describe_error,
)
from rllm_core.rollout.waits import ModelCall, ModelWaits, open_rollout
from rllm_core.seeding import call_seed, derive_seed, prompt_digest


@dataclass(frozen=True, kw_only=True)
class RunnerSettings:
    """The limits of `rllm.workflow` and `rllm.agent`."""

    n_parallel_tasks: int
    retry_limit: int
    raise_on_error: bool
    trajectory_timeout: float | None
    """Seconds. None means no limit."""


@dataclass(frozen=True, kw_only=True)
class RolloutSetup:
    """The properties that distinguish one rollout from all others; see `WorkflowContext`."""

    sampling: SamplingParams
    label: str
    number: int
    uid: str


MakeWorkflow = Callable[[RolloutSetup], Workflow]
"""Makes the workflow of one rollout."""


class RolloutRunner:
    """Runs requests with one workflow. Rollouts differ only by their seed, so equal requests give equal episodes."""

    def __init__(self, make_workflow: MakeWorkflow, settings: RunnerSettings, slots: Slots | None = None) -> None:
        """Create a runner. `slots` may belong to a different runner. The two then share the limit."""
        self._make_workflow = make_workflow
        self._settings = settings
        self._slots = slots or Slots(settings.n_parallel_tasks)

    async def run(self, order: RolloutRequest) -> list[Episode]:
        """Return all episodes, ordered by task and then by rollout. Concurrent requests share the slots.

        Raises:
            RolloutError: a rollout failed on every try and `raise_on_error` is set. The other rollouts are cancelled.
            BackendError: the engine failed or is gone. Rollouts are not tried again, because they did not cause the
                error.
        """

        async def rollout(task: Task, index: int) -> Episode:
            async with self._slots.reserve_slot(order.priority):
                return await self.rollout(order, task, index)

        rollouts = [
            asyncio.ensure_future(rollout(task, index)) for task in order.tasks for index in range(order.rollouts)
        ]
        try:
            return await asyncio.gather(*rollouts)
        finally:
            for future in rollouts:
                future.cancel()
            # Cancelled rollouts close their environments and sessions before the error is raised.
            await asyncio.gather(*rollouts, return_exceptions=True)

    async def rollout(self, order: RolloutRequest, task: Task, index: int) -> Episode:
        """Run one rollout of a request with its retries and return the episode. It needs no slot.

        Raises:
            RolloutError, BackendError: see `run`.
        """
        uid = f"{task.id}:{index}"
        last: BaseException = RolloutError("bad-value", "rllm.workflow.retry_limit is less than 1.")
        for number in range(self._settings.retry_limit):
            try:
                episode = await self._run(_setup(order, uid, number), task, uid)
            except (BackendError, ConfigError, PluginError, PipelineError):
                raise  # trying again cannot help
            except asyncio.CancelledError as error:
                if (this := asyncio.current_task()) is None or this.cancelling():
                    raise
                last = error  # The rollout itself was not cancelled. It awaited a task that was cancelled.
                continue
            except (Exception, SystemExit) as error:  # noqa: BLE001  (workflows and environments are external code)
                last = error
                continue
            episode.data_source = task.data_source
            if number:
                episode.metrics["retries"] = float(number)
            return episode
        return self._report_failure(task, uid, last)

    async def _run(self, rollout: RolloutSetup, task: Task, uid: str) -> Episode:
        with open_rollout(uid):
            workflow = self._make_workflow(rollout)
            limit = asyncio.timeout(self._settings.trajectory_timeout)
            try:
                async with limit:
                    episode = await workflow.run(copy.deepcopy(dict(task.data)), uid)
            except TimeoutError:
                if not limit.expired():  # raised by the workflow's code, so it is an ordinary error
                    raise
                episode = workflow.episode or Episode(id=uid)
                episode.termination_reason = TerminationReason.TIMEOUT
                episode.error = f"not finished after {self._settings.trajectory_timeout:g} s"
        if not isinstance(episode, Episode):
            raise PluginError(
                "bad-workflow-result",
                f"Workflow {type(workflow).__name__} returned {episode!r:.200} for rollout {uid!r}.",
                "Return an Episode.",
            )
        episode.id = uid
        return episode

    def _report_failure(self, task: Task, uid: str, error: BaseException) -> Episode:
        reason = describe_error(error)
        if self._settings.raise_on_error:
            ours = error if isinstance(error, RllmError) else RolloutError("rollout-failed", reason)
            shows_line = ours.details or ", line " in reason
            remedy = ours.hint or ("Correct that line." if shows_line else "Add --debug to see where it failed.")
            raise RolloutError(
                "rollout-failed",
                f"Rollout {uid!r} failed {self._settings.retry_limit} times: {ours.message.removesuffix('.')}.",
                f"{remedy} Or set rllm.workflow.raise_on_error=false to continue without it.",
                ours.details,
            ) from error
        return Episode(
            id=uid,
            termination_reason=TerminationReason.ERROR,
            data_source=task.data_source,
            error=reason,
            metrics={"retries": float(self._settings.retry_limit - 1)},
        )


def _setup(order: RolloutRequest, uid: str, number: int) -> RolloutSetup:
    sampling = order.sampling.with_seed(derive_seed(order.sampling.seed, order.label, uid, number))
    return RolloutSetup(sampling=sampling, label=order.label, number=number, uid=uid)


class Slots:
    """A fixed number of slots. Waiting rollouts get them by priority, then in the order in which they started to wait.

    The priority is the number of the rollout batch. Older batches go first, because training waits for them.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def reserve_slot(self, priority: int) -> _Reservation:
        """Return a context manager for ``async with`` that occupies a slot. Lower priorities get theirs first."""
        return _Reservation(self, priority)

    async def acquire(self, priority: int) -> None:
        """Wait for a slot."""
        if self._free:
            self._free -= 1
            return
        handed = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), handed))
        try:
            await handed
        except asyncio.CancelledError:
            if not handed.cancelled():
                self.release()  # the slot was assigned while the waiter was cancelled
            raise

    def release(self) -> None:
        """Give the slot to the first rollout that still waits."""
        while self._waiting:
            *_, handed = heapq.heappop(self._waiting)
            if not handed.done():
                handed.set_result(None)
                return
        self._free += 1


@dataclass(frozen=True, slots=True)
class _Reservation:
    slots: Slots
    priority: int

    async def __aenter__(self) -> None:
        await self.slots.acquire(self.priority)

    async def __aexit__(self, *_: object) -> None:
        self.slots.release()


class PerRolloutEngine(EngineWrapper):
    """An engine that derives the seed of each call from the rollout's seed, the prompt's tokens and a sibling number.

    The sampled tokens do not depend on the order in which calls of different prompts arrive, or on how they are sent.
    Repeated calls with the same prompt are different samples. They are numbered in the order of the calls.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        super().__init__(engine)
        self._waits = ModelWaits()
        self._siblings: Counter[tuple[int, str]] = Counter()
        self._failed: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        """Numbers of calls that raised an exception. A repeated call gets the same number and so the same sample."""

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """See `RolloutEngine.generate`. `sampling.seed` is the rollout's seed."""
        prompt = np.asarray(prompt_ids, np.int32)
        key = (sampling.seed, prompt_digest(prompt))
        if failed := self._failed.get(key):
            # Use the smallest number, so that several repeated calls keep their order.
            sibling = min(failed)
            failed.remove(sibling)
        else:
            sibling = self._siblings[key]
        self._siblings[key] = max(self._siblings[key], sibling + 1)
        own = sampling.with_seed(call_seed(*key, sibling))
        try:
            with self._waits.start() as wait:
                completion = await self.inner.generate(prompt, own, session=session)
                wait.call = ModelCall(
                    len(prompt), len(completion.token_ids), completion.finish_reason, completion.weight_version
                )
                return completion
        except BaseException:
            self._failed[key].append(sibling)
            raise
