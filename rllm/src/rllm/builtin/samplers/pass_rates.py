"""The samplers `difficulty` and `thompson`, which choose tasks by their pass rates so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from rllm_core.contracts.params import Params
from rllm_core.contracts.sampler import Sampler, SamplerSetup, TaskResult
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.seeding import derive_seed

Share = Annotated[float, Field(ge=0, le=1)]


class PassRateParams(Params):
    """Options of samplers that store pass rates of tasks."""

    memory: float = Field(0.5, ge=0, lt=1)
    """Weight of a task's earlier rollouts when new results arrive. 0: only the latest results apply."""
    key: str | None = Field(None, min_length=1)
    """Column of the tasks' data, such as `level`. Tasks with the same value share one pass rate. null: each task has
    its own."""


class DifficultyParams(PassRateParams):
    easy: Share = 0.9
    """Tasks with at least this pass rate are in the pool `easy`."""
    hard: Share = 0.1
    """Tasks with at most this pass rate are in the pool `hard`."""
    easy_share: Share = 0.1
    """Share of a batch that comes from the pool `easy`."""
    hard_share: Share = 0.1
    """Share of a batch that comes from the pool `hard`."""

    @model_validator(mode="after")
    def _check_fit(self) -> Self:
        if self.hard >= self.easy:
            raise ValueError(f"hard ({self.hard}) must be below easy ({self.easy})")
        if self.easy_share + self.hard_share > 1:
            raise ValueError(f"easy_share ({self.easy_share}) and hard_share ({self.hard_share}) exceed 1 together")
        return self


class ThompsonParams(PassRateParams):
    target: Share = 0.5
    """Preferred pass rate. At 0.5, rollouts of a task differ the most."""


def read_column(tasks: Sequence[Task], key: str) -> list[Any]:
    """Return one value of each task's data.

    Raises:
        ConfigError: a task lacks it.
    """
    values = []
    for task in tasks:
        if not isinstance(value := task.data.get(key), str | int | float):
            raise ConfigError(
                "missing-column",
                f"rllm.sampler.key is {key!r}, and task {task.id!r} has no text or number in this column.",
                did_you_mean(key, task.data) or f"Columns of its data: {', '.join(task.data) or 'none'}.",
            )
        values.append(value)
    return values


class PassRates:
    """Numbers of solved and unsolved rollouts per task. Tasks may share them, by a column of their data."""

    def __init__(self, params: PassRateParams, setup: SamplerSetup) -> None:
        self._memory = params.memory
        tasks = len(setup.tasks)
        if params.key is None:
            self._bin = np.arange(tasks)
        else:
            values = read_column(setup.tasks, params.key)
            bins = {value: number for number, value in enumerate(dict.fromkeys(values))}
            self._bin = np.array([bins[value] for value in values])
        self._counts: NDArray[np.float64] = np.zeros((int(self._bin.max()) + 1, 2))
        """(n_bin, 2) weighted numbers of solved and unsolved rollouts."""

    @property
    def solved_counts(self) -> NDArray[np.float64]:
        """(n_task,) weighted number of solved rollouts."""
        return self._counts[:, 0][self._bin]

    @property
    def unsolved_counts(self) -> NDArray[np.float64]:
        """(n_task,) weighted number of unsolved rollouts."""
        return self._counts[:, 1][self._bin]

    @property
    def rates(self) -> NDArray[np.float64]:
        """(n_task,) pass rates from 0 to 1. NaN if nothing was observed."""
        with np.errstate(invalid="ignore"):
            return self.solved_counts / (self.solved_counts + self.unsolved_counts)

    def observe(self, results: Sequence[TaskResult]) -> None:
        """Add the results of a step. Earlier rollouts of the same bins lose weight once."""
        bins = self._bin[[result.position for result in results]]
        self._counts[np.unique(bins)] *= self._memory
        for number, result in zip(bins, results, strict=True):
            solved = sum(result.solved)
            self._counts[number] += (solved, len(result.solved) - solved)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all bins that were observed."""
        seen = np.flatnonzero(self._counts.any(axis=1))
        return {"bins": seen.tolist(), "counts": self._counts[seen].tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        self._counts[:] = 0
        if state["bins"]:
            self._counts[state["bins"]] = state["counts"]


POOLS = ("easy", "normal", "hard")


class Difficulty(Sampler):
    """Three pools: `easy`, `hard`, and `normal` for all other tasks, including tasks without results.

    A batch has fixed shares of easy and hard tasks. If a pool has too few tasks, others replace them: first normal,
    then hard, then easy tasks. Within a pool, tasks that were drawn less often come first.
    """

    def __init__(self, params: DifficultyParams, setup: SamplerSetup) -> None:
        self._params = params
        self._setup = setup
        self._rates = PassRates(params, setup)
        self._drawn = np.zeros(len(setup.tasks), dtype=np.int64)
        self._shares: dict[str, float] = {}

    def draw(self, batch: int) -> list[int]:
        size = self._setup.batch_size
        ties = np.random.default_rng(derive_seed(self._setup.seed, "difficulty", batch)).random(len(self._drawn))
        order = np.lexsort((ties, self._drawn))
        pool = self._pools()[order]
        pools = {name: order[pool == number].tolist() for number, name in enumerate(POOLS)}
        self._shares = {name: len(pools[name]) / len(order) for name in POOLS}
        easy, hard = (
            pools[name][: round(size * share)]
            for name, share in (("easy", self._params.easy_share), ("hard", self._params.hard_share))
        )
        spare = [*pools["normal"], *pools["hard"][len(hard) :], *pools["easy"][len(easy) :]]
        chosen: list[int] = [*easy, *hard, *spare][:size]
        self._drawn[chosen] += 1
        return chosen

    def _pools(self) -> NDArray[np.int64]:
        """Return the index in `POOLS` of each task's pool, (n_task,)."""
        rates = self._rates.rates
        return np.where(rates >= self._params.easy, 0, np.where(rates <= self._params.hard, 2, 1))

    def observe(self, results: Sequence[TaskResult]) -> None:
        self._rates.observe(results)

    def metrics(self) -> Mapping[str, float]:
        return self._shares

    def state_dict(self) -> dict[str, Any]:
        seen = np.flatnonzero(self._drawn)
        return {"rates": self._rates.state_dict(), "seen": seen.tolist(), "drawn": self._drawn[seen].tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rates.load_state_dict(state["rates"])
        self._drawn[:] = 0
        self._drawn[state["seen"]] = state["drawn"]


class Thompson(Sampler):
    """Draws a pass rate for each task from Beta(1 + solved, 1 + unsolved), and takes the tasks closest to `target`.

    Thompson 1933, https://doi.org/10.1093/biomet/25.3-4.285. For curricula, see marin-community/marin#8765. The
    rollouts of a task lose weight with each new result (`memory`), because the pass rate changes in training.
    """

    def __init__(self, params: ThompsonParams, setup: SamplerSetup) -> None:
        self._params = params
        self._setup = setup
        self._rates = PassRates(params, setup)
        self._metrics: dict[str, float] = {}

    def draw(self, batch: int) -> list[int]:
        random = np.random.default_rng(derive_seed(self._setup.seed, "thompson", batch))
        solved, unsolved = self._rates.solved_counts, self._rates.unsolved_counts
        distance = np.abs(random.beta(1 + solved, 1 + unsolved) - self._params.target)
        chosen = np.argsort(distance, kind="stable")[: self._setup.batch_size]
        expected = (1 + solved) / (2 + solved + unsolved)
        self._metrics = {
            "observed": float((solved + unsolved > 0).mean()),
            "expected_pass_rate": float(expected[chosen].mean()),
        }
        return [int(position) for position in chosen]

    def observe(self, results: Sequence[TaskResult]) -> None:
        self._rates.observe(results)

    def metrics(self) -> Mapping[str, float]:
        return self._metrics

    def state_dict(self) -> dict[str, Any]:
        return self._rates.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rates.load_state_dict(state)
