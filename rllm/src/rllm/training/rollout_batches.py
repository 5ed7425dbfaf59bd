"""Generate rollout batches ahead of training, and hand them to training in order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rllm_core.contracts.train_step import TrainStep

BeginStep = Callable[[int, int], TrainStep]
"""Creates the step of a batch, from its number in the run (from 0) and the number of batches in progress before it."""
Generate = Callable[[TrainStep], Awaitable[None]]


@dataclass(frozen=True)
class _UnderWay:
    step: TrainStep
    task: asyncio.Task[None]


class RolloutBatches:
    """Generate rollout batches, each for its own training step. Training takes them in order.

    Batch r starts when training has taken batch r - `ahead` - 1 and requests the next one. There is no queue: `take`
    awaits the asyncio task that generates the batch.
    """

    def __init__(self, begin: BeginStep, generate: Generate, *, ahead: int, taken: int) -> None:
        """`ahead` is the maximum number of batches in progress in addition to the next batch for training. `taken` is
        the number of batches that earlier starts of the run have trained on."""
        self._begin = begin
        self._generate = generate
        self._ahead = ahead
        self._under_way: deque[_UnderWay] = deque()
        self.taken = taken
        """Number of batches that training has taken. It is also the number of the next batch."""

    def start(self, steps_left: int) -> TrainStep:
        """Start batches up to the limit, and return the step of the next batch for training.

        Args:
            steps_left: training steps of the run that still need a batch, including the current one. No more batches
                than these start.
        """
        while len(self._under_way) < min(self._ahead + 1, steps_left):
            before = len(self._under_way)
            step = self._begin(self.taken + before, before)
            self._under_way.append(_UnderWay(step, asyncio.ensure_future(self._generate(step))))
        return self._under_way[0].step

    async def take(self) -> TrainStep:
        """Wait until the next batch is generated, and return its step.

        Raise the exception of any batch in progress that failed, so that training stops at once.
        """
        waiting = time.perf_counter()
        first = self._under_way[0]
        while not first.task.done():
            running = [each.task for each in self._under_way if not each.task.done()]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            self._raise_failures()
        self._raise_failures()
        self._under_way.popleft()
        self.taken += 1
        generated, waited = sum(first.step.timing_dict.values()), time.perf_counter() - waiting
        first.step.generated_ahead = max(0.0, generated - waited)
        return first.step

    async def settle(self) -> list[TrainStep]:
        """Wait until all batches in progress are generated, and return their steps in order.

        Raise the exception of the first batch that failed.
        """
        if running := [each.task for each in self._under_way]:
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        self._raise_failures()
        return [each.step for each in self._under_way]

    def _raise_failures(self) -> None:
        for each in self._under_way:
            if each.task.done():
                each.task.result()

    async def close(self) -> None:
        """Cancel all batches in progress, and wait until they have ended."""
        running = [each.task for each in self._under_way]
        self._under_way.clear()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
