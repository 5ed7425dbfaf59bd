"""`mixed`: fixed ratios between data sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllm.builtin.samplers.options import MixedParams
from rllm.builtin.samplers.passes import Passes
from rllm_core.contracts.sampler import Sampler, SamplerSetup
from rllm_core.errors import ConfigError, did_you_mean


class Mixed(Sampler):
    """Draws from several data sources in fixed ratios: each task from the source that is furthest below its share.

    Tasks of one source come in passes, each in a new random order. The data source is `Task.data_source`. If the
    environment `mixed` made the tasks, they contain their ratio.
    """

    def __init__(self, params: MixedParams, setup: SamplerSetup) -> None:
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
