"""Rounds: batches of tasks that are being played, and the order in which training takes them up."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rllm_core.contracts.train_step import TrainStep

BeginStep = Callable[[int, int], TrainStep]
"""Makes the step of a round: its number in the run, from 0, and how many rounds are under way before it."""
Play = Callable[[TrainStep], Awaitable[None]]


@dataclass(frozen=True)
class _UnderWay:
    step: TrainStep
    playing: asyncio.Task[None]


class Rounds:
    """Plays rounds, each on a step of its own; training takes them up in order.

    Round r begins once training has taken up round r - `ahead` - 1 and asks for the next. There is no queue to fill up:
    who waits for a round waits for the task that plays it.
    """

    def __init__(self, begin: BeginStep, play: Play, *, ahead: int, taken: int) -> None:
        """`ahead`: how many rounds may be under way beside the one that training takes up next; `taken`: of earlier
        starts of the run."""
        self._begin = begin
        self._play = play
        self._ahead = ahead
        self._under_way: deque[_UnderWay] = deque()
        self.taken = taken
        """Rounds that training has taken up; also the number of the next."""

    def start(self, steps_left: int) -> TrainStep:
        """Begin what may begin; the step of the round that is taken up next.

        Args:
            steps_left: training steps of the run that still need a round, the one under way included. No round begins
                that no step would train on.
        """
        while len(self._under_way) < min(self._ahead + 1, steps_left):
            before = len(self._under_way)
            step = self._begin(self.taken + before, before)
            self._under_way.append(_UnderWay(step, asyncio.ensure_future(self._play(step))))
        return self._under_way[0].step

    async def take(self) -> TrainStep:
        """Wait until the next round has been played; its step.

        Raises what the first round that failed raised, also where it comes later: nothing trains beside a failure.
        """
        waiting = time.perf_counter()
        first = self._under_way[0]
        while not first.playing.done():
            playing = [each.playing for each in self._under_way if not each.playing.done()]
            await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
            self._raise_failures()
        self._raise_failures()
        self._under_way.popleft()
        self.taken += 1
        played, waited = sum(first.step.timing_dict.values()), time.perf_counter() - waiting
        first.step.generated_ahead = max(0.0, played - waited)
        return first.step

    async def settle(self) -> list[TrainStep]:
        """Wait until all that is under way has been played; the steps of those rounds, in order.

        Raises what the first round that failed raised.
        """
        if playing := [each.playing for each in self._under_way]:
            await asyncio.wait(playing, return_when=asyncio.FIRST_EXCEPTION)
        self._raise_failures()
        return [each.step for each in self._under_way]

    def _raise_failures(self) -> None:
        for each in self._under_way:
            if each.playing.done():
                each.playing.result()

    async def close(self) -> None:
        """Cancel what is under way, and wait until it has ended."""
        playing = [each.playing for each in self._under_way]
        self._under_way.clear()
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
