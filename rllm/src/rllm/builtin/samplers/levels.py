"""`levels`: a curriculum over the levels of a generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllm.builtin.samplers.columns import column
from rllm.builtin.samplers.options import LevelsParams
from rllm.builtin.samplers.passes import Passes
from rllm_core.contracts.sampler import Sampler, SamplerSetup, TaskResult
from rllm_core.errors import ConfigError
from rllm_core.seeding import derive_seed


class Levels(Sampler):
    """Opens the lowest level first, and the next one when the highest open level is solved.

    After the results of `tasks` tasks at the highest open level, the next level opens if their pass rate is at least
    `solved`. The count then starts again from 0. At most `window` levels are open. The level of each task is drawn
    uniformly. Source: RLVE, arXiv:2511.07317.
    """

    def __init__(self, params: LevelsParams, setup: SamplerSetup) -> None:
        self._params = params
        self._setup = setup
        self._level_of = column(setup.tasks, params.key)
        if text := next((level for level in self._level_of if isinstance(level, str)), None):
            raise ConfigError(
                "wrong-value",
                f"Column {params.key!r} contains the level {text!r}, which is not a number.",
                "Set rllm.sampler.key to a column with numbers.",
            )
        self._levels = sorted(set(self._level_of))
        tasks: dict[float, list[int]] = {level: [] for level in self._levels}
        for position, level in enumerate(self._level_of):
            tasks[level].append(position)
        self._passes = [Passes(tasks[level], setup.seed, f"level {level}") for level in self._levels]
        self._highest = 0
        """Index of the highest open level."""
        self._pass_rates: list[float] = []
        """Pass rates of the tasks at this level since the last decision."""

    @property
    def _lowest(self) -> int:
        return max(0, self._highest - self._params.window + 1)

    def draw(self, batch: int) -> list[int]:
        size, lowest = self._setup.batch_size, self._lowest
        random = np.random.default_rng(derive_seed(self._setup.seed, "levels", batch))
        counts = Counter(random.integers(lowest, self._highest + 1, size).tolist())
        chosen = [position for level in sorted(counts) for position in self._passes[level].take(counts[level])]
        # A level may have fewer tasks than its part of the batch. Other levels, the open ones first, fill the batch.
        for level in (*range(self._highest, -1, -1), *range(self._highest + 1, len(self._levels))):
            if len(chosen) == size:
                break
            chosen += self._passes[level].take(size - len(chosen), skip=chosen)
        return chosen

    def observe(self, results: Sequence[TaskResult]) -> None:
        for result in results:
            if self._level_of[result.position] == self._levels[self._highest]:
                self._pass_rates.append(result.pass_rate)
                if len(self._pass_rates) == self._params.tasks:
                    self._decide()

    def _decide(self) -> None:
        is_solved = sum(self._pass_rates) >= self._params.solved * len(self._pass_rates)
        self._highest = min(self._highest + is_solved, len(self._levels) - 1)
        self._pass_rates = []

    def metrics(self) -> Mapping[str, float]:
        highest, lowest = self._levels[self._highest], self._levels[self._lowest]
        return {"highest_level": float(highest), "lowest_level": float(lowest)}

    def state_dict(self) -> dict[str, Any]:
        visited = [passes.visited for passes in self._passes]
        return {"highest": self._highest, "pass_rates": list(self._pass_rates), "visited": visited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._highest, self._pass_rates = state["highest"], list(state["pass_rates"])
        for passes, visited in zip(self._passes, state["visited"], strict=True):
            passes.visited = visited
