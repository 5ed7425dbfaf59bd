"""Shuffled passes over some tasks."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.seeding import derive_seed


def shuffled(tasks: int, seed: int, *place: str | int) -> NDArray[np.int64]:
    """Return 0 to ``tasks - 1``, shape (tasks,), in a random order that depends only on the arguments."""
    return np.random.default_rng(derive_seed(seed, "tasks", *place)).permutation(tasks)


class Passes:
    """Endless passes over some positions, each in a new random order.

    `visited` is its only state: the number of positions that all passes so far have gone over.
    """

    def __init__(self, positions: Sequence[int], seed: int, *place: str | int) -> None:
        self._positions = positions
        self._seed = seed
        self._place = place
        self.visited = 0
        self._order = (-1, np.empty(0, np.int64))
        """Number of the current pass, and its order."""

    def take(self, count: int, skip: Container[int] = ()) -> list[int]:
        """Return the next `count` positions, all different and none in `skip`. Fewer if there are not so many."""
        taken: dict[int, None] = {}
        unused = 0
        while len(taken) < count and unused < 2 * len(self._positions):
            number, place = divmod(self.visited, len(self._positions))
            if self._order[0] != number:
                self._order = number, shuffled(len(self._positions), self._seed, *self._place, number)
            position = self._positions[self._order[1][place]]
            self.visited += 1
            if position in skip or position in taken:
                unused += 1
            else:
                taken[position] = None
        return list(taken)
