"""`difficulty`: pools of tasks by pass rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.samplers.options import DifficultyParams
from rllm.builtin.samplers.pass_rates import PassRates
from rllm_core.contracts.sampler import Sampler, SamplerSetup, TaskResult
from rllm_core.seeding import derive_seed

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
