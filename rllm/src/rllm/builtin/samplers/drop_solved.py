"""`drop_solved`: no task again that was solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rllm.builtin.samplers.options import DropSolvedParams
from rllm.builtin.samplers.passes import Passes
from rllm_core.contracts.sampler import Sampler, SamplerSetup, TaskResult


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
