"""Pipeline: runs the stages of one step, timing each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rllm_core.contracts.stage import Stage
from rllm_core.pipeline.context import StageContext
from rllm_core.pipeline.graph import ChosenStage
from rllm_core.pipeline.step import TrainStep


class Pipeline:
    """The stages of a run, made from their records."""

    def __init__(self, chosen: Sequence[ChosenStage], context: StageContext) -> None:
        self._stages: list[tuple[ChosenStage, Stage]] = [
            (stage, stage.plugin.load()(context, stage.params)) for stage in chosen
        ]

    async def run(self, step: TrainStep) -> None:
        """Run all stages; after `step.skip` only those that always run."""
        for chosen, stage in self._stages:
            if step.skip_reason and not chosen.plugin.always:
                continue
            start = time.perf_counter()
            await stage(step)
            name = chosen.plugin.name
            step.timing_dict[name] = step.timing_dict.get(name, 0.0) + time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """State of the stages that keep something between steps, by stage name."""
        return {
            chosen.plugin.name: stage.state_dict() for chosen, stage in self._stages if hasattr(stage, "state_dict")
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for chosen, stage in self._stages:
            if chosen.plugin.name in state and hasattr(stage, "load_state_dict"):
                stage.load_state_dict(state[chosen.plugin.name])
