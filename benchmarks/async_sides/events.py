"""Rollouts and updates as discrete events: when each update of a simulated run ends, and how old its tokens are.

What the run does is what rounds and slots do: tasks are drawn in order; those of round r may begin once round
r - S - 1 has been trained on; slots go to older tasks first. Tokens are sampled at a rate that depends on how many
sequences there are, and environments take seconds between them.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Turn = tuple[float, float]
"""Tokens that the model samples, and the seconds that the environment takes to answer them."""
Rate = Callable[[int], float]
"""Tokens per second of each of so many sequences that are sampled at once."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What is simulated. Times are seconds."""

    tasks: int
    """Of a round."""
    group: int
    """Rollouts of a task."""
    turns_of: Callable[[int], Sequence[Turn]]
    """The turns of a rollout, by its number in the order in which tasks are drawn."""
    rate: Rate
    update: float
    sync_weights: float = 0.0
    validation: float = 0.0
    """After every `validated_every` updates; rounds that are under way go on, and none begins."""
    validated_every: int = sys.maxsize
    slots: int = sys.maxsize
    """Rollouts under way at once."""
    samples_during_updates: bool = True
    versions_at_once: bool = True
    """Whether the rate is as high where sequences have several versions of the weights; False: they take turns."""


@dataclass(frozen=True)
class Simulated:
    """An entry per update."""

    ends: list[float] = field(default_factory=list)
    """Seconds since the run began."""
    stale: list[int] = field(default_factory=list)
    """Updates between the weights that a rollout began with and those that train on it, of the oldest rollout."""
    lengths: list[float] = field(default_factory=list)
    """Mean tokens of the rollouts that it trains on."""

    def seconds_per_step(self, skipped: int) -> float:
        """Without the first updates."""
        return (self.ends[-1] - self.ends[skipped]) / (len(self.ends) - 1 - skipped)


class Sampler:
    """Sequences that share what samples."""

    def __init__(self, world: World) -> None:
        self._world, self._paused = world, False
        self._now = self._sampled = 0.0  # `_sampled`: what a sequence has got that was there from the beginning
        self._ends: list[tuple[float, int, int]] = []
        self._versions = Counter[int]()

    def add(self, now: float, tokens: float, rollout: int, version: int) -> None:
        """The rollout samples so many tokens from now on, by a version of the weights."""
        self._move_to(now)
        heapq.heappush(self._ends, (self._sampled + tokens, rollout, version))
        self._versions[version] += 1

    def next_end(self) -> float:
        """When the next rollout has its tokens, if nothing changes."""
        if self._paused or not self._ends:
            return math.inf
        return self._now + (self._ends[0][0] - self._sampled) / self._rate()

    def remove_next(self) -> int:
        """Go on to `next_end`; the rollout that has its tokens."""
        self._now = self.next_end()
        self._sampled, rollout, version = heapq.heappop(self._ends)
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]
        return rollout

    def pause(self, now: float, paused: bool) -> None:
        """Stop sampling, or go on."""
        self._move_to(now)
        self._paused = paused

    def _move_to(self, now: float) -> None:
        if self._ends and not self._paused:
            self._sampled += (now - self._now) * self._rate()
        self._now = now

    def _rate(self) -> float:
        rate = self._world.rate(len(self._ends))
        return rate if self._world.versions_at_once else rate / len(self._versions)


Take = Callable[[Sequence[int], int, int], Sequence[int] | None]
"""Which of the finished tasks, in the order in which they finished, an update trains on: given the number of the
update and of tasks that it takes. None: it waits."""


def in_order(finished: Sequence[int], update: int, count: int) -> Sequence[int] | None:
    """The tasks of the round with the number of the update."""
    taken = range(update * count, (update + 1) * count)
    return taken if set(taken).issubset(finished) else None


def as_completed(finished: Sequence[int], update: int, count: int) -> Sequence[int] | None:
    """Those that finished first."""
    return finished[:count] if len(finished) >= count else None


class Simulation:
    """One run. `play` makes it."""

    def __init__(self, world: World, staleness: int, take: Take, *, pinned: bool) -> None:
        self._world, self._staleness, self._take, self._pinned = world, staleness, take, pinned
        self._sampler = Sampler(world)
        self._now, self._version, self._begun, self._running = 0.0, 0, 0, 0
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: deque[int] = deque()
        self._place: dict[int, int] = {}  # of a rollout: how many of its turns are over
        self._sampled_by: dict[int, int] = {}
        self._left: dict[int, int] = {}  # rollouts of a task that have not ended
        self._finished: list[int] = []
        self._count = 0
        self._trains = False
        self.made = Simulated()

    def play(self, updates: int) -> Simulated:
        """Go on until so many updates have been made."""
        self._begin()
        while len(self.made.ends) < updates:
            timed = self._later[0][0] if self._later else math.inf
            sampled = self._sampler.next_end()
            self._now = min(timed, sampled)
            if sampled < timed:
                self._turn_sampled(self._sampler.remove_next())
            else:
                heapq.heappop(self._later)[2]()
        return self.made

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._later, (self._now + seconds, self._count, then))

    def _begin(self) -> None:
        """Draw the tasks that may begin."""
        world = self._world
        allowed = (self._version + self._staleness + 1) * world.tasks
        for task in range(self._begun, allowed):
            self._left[task] = world.group
            for rollout in range(task * world.group, (task + 1) * world.group):
                self._sampled_by[rollout] = self._version
                self._waiting.append(rollout)
        self._begun = allowed
        self._fill_slots()

    def _fill_slots(self) -> None:
        while self._waiting and self._running < self._world.slots:
            rollout = self._waiting.popleft()
            self._running += 1
            self._place[rollout] = 0
            if not self._pinned:
                self._sampled_by[rollout] = self._version
            self._sample(rollout)

    def _sample(self, rollout: int) -> None:
        tokens, _ = self._world.turns_of(rollout)[self._place[rollout]]
        # With the newest weights all sequences have the same ones.
        self._sampler.add(self._now, tokens, rollout, self._sampled_by[rollout] if self._pinned else 0)

    def _turn_sampled(self, rollout: int) -> None:
        _, seconds = self._world.turns_of(rollout)[self._place[rollout]]
        self._place[rollout] += 1
        if seconds:
            self._after(seconds, lambda: self._go_on(rollout))
        else:
            self._go_on(rollout)

    def _go_on(self, rollout: int) -> None:
        if self._place[rollout] < len(self._world.turns_of(rollout)):
            self._sample(rollout)
            return
        self._running -= 1
        task = rollout // self._world.group
        self._left[task] -= 1
        if not self._left[task]:
            self._finished.append(task)
            self._train()
        self._fill_slots()

    def _train(self) -> None:
        """Begin an update where none is under way and its tasks are there."""
        if self._trains or len(self._finished) < self._world.tasks:
            return
        tasks = self._take(self._finished, self._version, self._world.tasks)
        if tasks is None:
            return
        self._trains = True
        taken = set(tasks)
        self._finished = [task for task in self._finished if task not in taken]
        rollouts = [task * self._world.group + each for task in taken for each in range(self._world.group)]
        stale = self._version - min(self._sampled_by.pop(each) for each in rollouts)
        tokens = sum(turn[0] for each in rollouts for turn in self._world.turns_of(each))
        if not self._world.samples_during_updates:
            self._sampler.pause(self._now, True)
        self._after(
            self._world.update + self._world.sync_weights, lambda: self._end_update(stale, tokens / len(rollouts))
        )

    def _end_update(self, stale: int, length: float) -> None:
        self._version += 1
        self.made.ends.append(self._now)
        self.made.stale.append(stale)
        self.made.lengths.append(length)
        self._sampler.pause(self._now, False)
        if self._version % self._world.validated_every:
            self._next_step()
        else:
            self._after(self._world.validation, self._next_step)

    def _next_step(self) -> None:
        self._trains = False
        self._begin()
        self._train()
