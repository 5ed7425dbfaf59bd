"""Pass rates of tasks, as observed so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.samplers.columns import column
from rllm.builtin.samplers.options import PassRateParams
from rllm_core.contracts.sampler import SamplerSetup, TaskResult


class PassRates:
    """Numbers of solved and unsolved rollouts per task. Tasks may share them, by a column of their data."""

    def __init__(self, params: PassRateParams, setup: SamplerSetup) -> None:
        self._memory = params.memory
        tasks = len(setup.tasks)
        if params.key is None:
            self._bin = np.arange(tasks)
        else:
            values = column(setup.tasks, params.key)
            bins = {value: number for number, value in enumerate(dict.fromkeys(values))}
            self._bin = np.array([bins[value] for value in values])
        self._counts: NDArray[np.float64] = np.zeros((int(self._bin.max()) + 1, 2))
        """(n_bin, 2) weighted numbers of solved and unsolved rollouts."""

    @property
    def solved(self) -> NDArray[np.float64]:
        """(n_task,) weighted number of solved rollouts."""
        return self._counts[:, 0][self._bin]

    @property
    def unsolved(self) -> NDArray[np.float64]:
        """(n_task,) weighted number of unsolved rollouts."""
        return self._counts[:, 1][self._bin]

    @property
    def rates(self) -> NDArray[np.float64]:
        """(n_task,) pass rates from 0 to 1. NaN if nothing was observed."""
        with np.errstate(invalid="ignore"):
            return self.solved / (self.solved + self.unsolved)

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
