"""Rollouts and updates as discrete events: when each update of a simulated run ends, and how old its tokens are.

The simulation follows the rules of a run. Tasks are drawn in order. Tasks of batch b may begin after the update on
batch b - S - 1. Slots go to older tasks first. The sampling rate depends on the number of sequences. Environments take
seconds between the turns.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Turn = tuple[float, float]
"""Tokens that the model samples, and the environment's seconds for its answer."""
Rate = Callable[[int], float]
"""Tokens per second of each sequence, given the number of sequences that are sampled at once."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Settings of a simulation. Times are seconds."""

    tasks: int
    """Tasks of a batch."""
    group: int
    """Rollouts of a task."""
    turns_of: Callable[[int], Sequence[Turn]]
    """Returns the turns of a rollout, given its number in the order in which tasks are drawn."""
    rate: Rate
    update: float
    sync_weights: float = 0.0
    validation: float = 0.0
    """Seconds of a validation after every `validated_every` updates. Running batches continue, and no batch begins."""
    validated_every: int = sys.maxsize
    slots: int = sys.maxsize
    """Maximum number of concurrent rollouts."""
    samples_during_updates: bool = True
    versions_at_once: bool = True
    """True if sequences of several weight versions are sampled at the full rate. If False, the versions alternate."""


@dataclass(frozen=True)
class Simulated:
    """Results of a simulation: lists with an entry per update."""

    ends: list[float] = field(default_factory=list)
    """Seconds since the start of the run."""
    stale: list[int] = field(default_factory=list)
    """Staleness of the oldest rollout: updates between its first weights and the weights that train on it."""
    lengths: list[float] = field(default_factory=list)
    """Mean number of tokens of the rollouts in the update."""

    def seconds_per_step(self, skipped: int) -> float:
        """Return the mean seconds of an update, without the first ones."""
        return (self.ends[-1] - self.ends[skipped]) / (len(self.ends) - 1 - skipped)


class Sampler:
    """A sampler that all running sequences share."""

    def __init__(self, world: World) -> None:
        self._world, self._paused = world, False
        self._now = self._sampled = 0.0  # `_sampled`: tokens of a sequence that began at 0
        self._ends: list[tuple[float, int, int]] = []
        self._versions = Counter[int]()

    def add(self, now: float, tokens: float, rollout: int, version: int) -> None:
        """Begin to sample this number of tokens for the rollout, with a version of the weights."""
        self._move_to(now)
        heapq.heappush(self._ends, (self._sampled + tokens, rollout, version))
        self._versions[version] += 1

    def next_end(self) -> float:
        """Return the time at which the next rollout has its tokens, if nothing changes."""
        if self._paused or not self._ends:
            return math.inf
        return self._now + (self._ends[0][0] - self._sampled) / self._rate()

    def remove_next(self) -> int:
        """Advance to `next_end`, and return the rollout that has its tokens."""
        self._now = self.next_end()
        self._sampled, rollout, version = heapq.heappop(self._ends)
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]
        return rollout

    def pause(self, now: float, paused: bool) -> None:
        """Pause or continue sampling."""
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
"""Chooses the tasks of an update. Its arguments are the finished tasks in the order of their ends, the number of the
update and the number of tasks in an update. None if the update has to wait."""


def in_order(finished: Sequence[int], update: int, count: int) -> Sequence[int] | None:
    """Return the tasks of the batch with the update's number."""
    taken = range(update * count, (update + 1) * count)
    return taken if set(taken).issubset(finished) else None


def as_completed(finished: Sequence[int], update: int, count: int) -> Sequence[int] | None:
    """Return the tasks that finished first."""
    return finished[:count] if len(finished) >= count else None


class Simulation:
    """A simulated run. `run` simulates it."""

    def __init__(self, world: World, staleness: int, take: Take, *, fixed_version: bool) -> None:
        self._world, self._staleness, self._take, self._fixed_version = world, staleness, take, fixed_version
        self._sampler = Sampler(world)
        self._now, self._version, self._begun, self._running = 0.0, 0, 0, 0
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._waiting: deque[int] = deque()
        self._place: dict[int, int] = {}  # rollout -> finished turns
        self._sampled_by: dict[int, int] = {}
        self._left: dict[int, int] = {}  # task -> unfinished rollouts
        self._finished: list[int] = []
        self._count = 0
        self._trains = False
        self.made = Simulated()

    def run(self, updates: int) -> Simulated:
        """Simulate this number of updates."""
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
            if not self._fixed_version:
                self._sampled_by[rollout] = self._version
            self._sample(rollout)

    def _sample(self, rollout: int) -> None:
        tokens, _ = self._world.turns_of(rollout)[self._place[rollout]]
        # With the latest weights all sequences have the same version.
        self._sampler.add(self._now, tokens, rollout, self._sampled_by[rollout] if self._fixed_version else 0)

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
        """Begin an update if none is running and its tasks are finished."""
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
