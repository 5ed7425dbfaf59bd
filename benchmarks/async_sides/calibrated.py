"""A simulation of runs on this machine, calibrated only on a synchronous run."""

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
    """A world and its fitted value."""

    world: World
    response: float
    """Seconds to sample one response."""


@cache
def turns_of_waiting(rollout: int) -> Sequence[Turn]:
    """Return the turns of a rollout. A response has the length 1, and answers take as long as in the run."""
    return [(1.0, seconds_of_answer(rollout, turn)) for turn in range(TURNS)]


def turns_of_guess(rollout: int) -> Sequence[Turn]:
    """Return one turn of length 1, because games compute all the time."""
    return [(1.0, 0.0)]


def calibrated(name: str, clock: Clock) -> Calibrated:
    """Return the settings with which a simulated synchronous run is as fast as the measured one.

    Args:
        name: the environment's name.
        clock: of a synchronous run.
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
        # A forward pass uses one version, and takes equally long for few rows and for many.
        versions_at_once=not waiting,
    )

    def at(response: float) -> World:
        # A forward pass gives every sequence a token, in about the same time. Games of `guess` share one core.
        return replace(world, rate=lambda sequences: 1 / response / (1 if waiting else sequences))

    low, high = 0.0, step
    for _ in range(STEPS_OF_BISECTION):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds_per_step(at(middle), 0, latest=False) < step else (low, middle)
    return Calibrated(world=at(high), response=high)


def seconds_per_step(world: World, staleness: int, *, latest: bool) -> float:
    """Return the seconds per step of a simulated run that is as long as the measured ones."""
    return Simulation(world, staleness, in_order, fixed_version=not latest).run(STEPS).seconds_per_step(SKIPPED)
