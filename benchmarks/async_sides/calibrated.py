"""What a simulation says of runs on this machine, from a run that takes turns alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from async_sides.events import Simulation, Turn, World, in_order
from async_sides.runs import SKIPPED, STEPS, TURNS, Clock, seconds_of_answer

STEPS_OF_BISECTION = 30
SLOTS = 256
"""`rllm.workflow.n_parallel_tasks`."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A world, and what was found of it."""

    world: World
    response: float
    """Seconds in which one response is sampled."""


@cache
def turns_of_waiting(rollout: int) -> Sequence[Turn]:
    """A response is one unit of what is sampled; answers take what they take in the run."""
    return [(1.0, seconds_of_answer(rollout, turn)) for turn in range(TURNS)]


def turns_of_guess(rollout: int) -> Sequence[Turn]:
    """Games compute all the time: one unit each."""
    return [(1.0, 0.0)]


def calibrated(name: str, clock: Clock) -> Calibrated:
    """The world in which a simulated run that takes turns takes what the measured one took.

    Args:
        name: of the environment.
        clock: of a run that takes turns.
    """
    step = clock.per_step().wall
    update = step - statistics.mean(clock.generating[SKIPPED + 1 :])
    waiting = name == "waiting"
    world = World(
        tasks=4 if waiting else 16,
        group=4 if waiting else 16,
        turns_of=turns_of_waiting if waiting else turns_of_guess,
        rate=lambda sequences: 1.0,
        update=update,
        slots=SLOTS,
        # A pass is of one version, and takes what it takes for few rows or many.
        versions_at_once=not waiting,
    )

    def at(response: float) -> World:
        # A pass gives every sequence a token, in about the same time; games of `guess` share one core.
        return replace(world, rate=lambda sequences: 1 / response / (1 if waiting else sequences))

    low, high = 0.0, step
    for _ in range(STEPS_OF_BISECTION):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds_per_step(at(middle), 0, latest=False) < step else (low, middle)
    return Calibrated(world=at(high), response=high)


def seconds_per_step(world: World, staleness: int, *, latest: bool) -> float:
    """Of a simulated run as long as the measured ones."""
    return Simulation(world, staleness, in_order, pinned=not latest).play(STEPS).seconds_per_step(SKIPPED)
