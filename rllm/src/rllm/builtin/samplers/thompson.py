"""`thompson`: Thompson sampling of tasks that are half solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllm.builtin.samplers.options import ThompsonParams
from rllm.builtin.samplers.pass_rates import PassRates
from rllm_core.contracts.sampler import Sampler, SamplerSetup, TaskResult
from rllm_core.seeding import derive_seed


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
        solved, unsolved = self._rates.solved, self._rates.unsolved
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
