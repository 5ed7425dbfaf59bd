"""Check that time grows linearly with the input. The check compares ratios, not seconds."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import TypeVar

T = TypeVar("T")

GROWTH = 8
"""How much larger the second input is. Linear work takes 8 times as long, quadratic work 64 times."""
ALLOWED = 3 * GROWTH
"""Room for caches that overflow."""
LONG_ENOUGH = 5e-3
"""Seconds of computing. Below this, fixed costs such as starting threads hide what the input costs."""
PATIENCE = 0.3
"""Seconds after which one measurement is not repeated."""
ROLLOUTS = 2


def time_ratio(call: Callable[[T], object], make: Callable[[int], T], smallest: int, largest: int) -> float:
    """How many times as long `call` takes on an input of `GROWTH` times the size.

    Sizes start at `smallest` and double until the call takes long enough to be measured, or up to `largest`. Measured
    again, a few times, where the ratio is above `ALLOWED`; the smallest ratio counts. A call that is quick even then
    counts as taking `LONG_ENOUGH`.
    """
    size = smallest
    while size < largest and _seconds(call, make(size)) < LONG_ENOUGH:
        size *= 2
    once, grown = make(size), make(GROWTH * size)
    best = float("inf")
    for _ in range(ROLLOUTS):
        best = min(best, _seconds(call, grown) / max(_seconds(call, once), LONG_ENOUGH))
        if best < ALLOWED:
            break
    return best


def _seconds(call: Callable[[T], object], argument: T) -> float:
    """The best of three calls, in computing time: other processes stretch the time on the clock."""
    took: list[float] = []
    while len(took) < 3 and sum(took) < PATIENCE:
        start = process_time()
        call(argument)
        took.append(process_time() - start)
    return min(took)
