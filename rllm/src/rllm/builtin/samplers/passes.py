"""The samplers `uniform`, `drop_solved`, `mixed` and `levels`: shuffled passes over some of the tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rllm.builtin.samplers.pass_rates import read_column
from rllm_core.contracts.params import NoParams, Params
from rllm_core.contracts.sampler import Sampler, SamplerSetup, TaskResult
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.seeding import derive_seed


class DropSolvedParams(Params):
    bound: float = Field(0.9, gt=0, le=1)
    """Drop a task when its pass rate in one batch is at least this."""


class LevelsParams(Params):
    key: str = Field("level", min_length=1)
    """Column of the tasks' data that contains the level, a number."""
    solved: float = Field(0.9, gt=0, le=1)
    """Pass rate of the highest open level that opens the next level."""
    tasks: int = Field(8, gt=0)
    """Number of tasks at the highest open level whose results decide."""
    window: int = Field(4, gt=0)
    """Number of open levels. Levels further below are closed."""


class MixedSamplerParams(Params):
    ratios: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Ratios between data sources, such as {math: 3, code: 1}. A source without an entry has the ratio of its
    environment, or 1."""


def shuffle_positions(tasks: int, seed: int, *place: str | int) -> NDArray[np.int64]:
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
                self._order = number, shuffle_positions(len(self._positions), self._seed, *self._place, number)
            position = self._positions[self._order[1][place]]
            self.visited += 1
            if position in skip or position in taken:
                unused += 1
            else:
                taken[position] = None
        return list(taken)


class Uniform(Sampler):
    """Each task once per epoch, in a new random order. The last batch of an epoch may be smaller."""

    def __init__(self, params: NoParams, setup: SamplerSetup) -> None:
        self._setup = setup

    def draw(self, batch: int) -> list[int]:
        tasks, size = len(self._setup.tasks), self._setup.batch_size
        epoch, place = divmod(batch, -(-tasks // size))
        order = shuffle_positions(tasks, self._setup.seed, epoch)
        return [int(position) for position in order[place * size : (place + 1) * size]]


class DropSolved(Sampler):
    """Passes over all tasks, without those whose pass rate was at least `bound` in one batch.

    Source: ScaleRL, arXiv:2510.13786, "no positive resampling". The next pass begins within a
    batch. Batches are smaller if fewer tasks are left. If all tasks are dropped, all return.
    """

    def __init__(self, params: DropSolvedParams, setup: SamplerSetup) -> None:
        self._bound = params.bound
        self._setup = setup
        self._passes = Passes(range(len(setup.tasks)), setup.seed)
        self._dropped: set[int] = set()

    def draw(self, batch: int) -> list[int]:
        if len(self._dropped) == len(self._setup.tasks):
            self._dropped.clear()
        return self._passes.take(self._setup.batch_size, skip=self._dropped)

    def observe(self, results: Sequence[TaskResult]) -> None:
        self._dropped.update(result.position for result in results if result.pass_rate >= self._bound)

    def metrics(self) -> Mapping[str, float]:
        return {"dropped": len(self._dropped) / len(self._setup.tasks)}

    def state_dict(self) -> dict[str, Any]:
        return {"visited": self._passes.visited, "dropped": sorted(self._dropped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._passes.visited = state["visited"]
        self._dropped = set(state["dropped"])


class MixedSampler(Sampler):
    """Draws from several data sources in fixed ratios: each task from the source that is furthest below its share.

    Tasks of one source come in passes, each in a new random order. The data source is `Task.data_source`. If the
    environment `mixed` made the tasks, they contain their ratio.
    """

    def __init__(self, params: MixedSamplerParams, setup: SamplerSetup) -> None:
        self._setup = setup
        positions: dict[str, list[int]] = {}
        self._ratios: dict[str, float] = {}
        for position, task in enumerate(setup.tasks):
            source = task.data_source
            if source not in positions:
                positions[source] = []
                self._ratios[source] = params.ratios.get(source, float(task.data.get("ratio", 1.0)))
            positions[source].append(position)
        if unknown := sorted(params.ratios.keys() - positions.keys()):
            raise ConfigError(
                "unknown-choice",
                f"rllm.sampler.ratios.{unknown[0]} is set, and no training task has this data source.",
                did_you_mean(unknown[0], positions) or f"Data sources: {', '.join(positions)}.",
            )
        self._passes = {source: Passes(places, setup.seed, f"source {source}") for source, places in positions.items()}
        self._sizes = {source: len(places) for source, places in positions.items()}
        self._drawn = dict.fromkeys(positions, 0)
        """Number of tasks drawn from each source in the run."""
        self._shares: dict[str, float] = {}

    def draw(self, batch: int) -> list[int]:
        counts = dict.fromkeys(self._drawn, 0)
        for _ in range(self._setup.batch_size):
            left = [source for source, count in counts.items() if count < self._sizes[source]]
            total, drawn = sum(self._ratios.values()), sum(self._drawn.values()) + 1
            source = max(left, key=lambda source: self._ratios[source] / total * drawn - self._drawn[source])
            counts[source] += 1
            self._drawn[source] += 1
        self._shares = {f"share/{source}": count / self._setup.batch_size for source, count in counts.items()}
        return [position for source, count in counts.items() for position in self._passes[source].take(count)]

    def metrics(self) -> Mapping[str, float]:
        return self._shares

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn, "visited": {source: passes.visited for source, passes in self._passes.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drawn = dict(state["drawn"])
        for source, passes in self._passes.items():
            passes.visited = state["visited"][source]


class Levels(Sampler):
    """Opens the lowest level first, and the next one when the highest open level is solved.

    After the results of `tasks` tasks at the highest open level, the next level opens if their pass rate is at least
    `solved`. The count then starts again from 0. At most `window` levels are open. The level of each task is drawn
    uniformly. Source: RLVE, arXiv:2511.07317.
    """

    def __init__(self, params: LevelsParams, setup: SamplerSetup) -> None:
        self._params = params
        self._setup = setup
        self._level_of = read_column(setup.tasks, params.key)
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
