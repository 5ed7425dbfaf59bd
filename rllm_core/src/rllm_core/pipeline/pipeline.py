"""Pipeline: runs the stages of one step, timing each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from inspect import isawaitable
from typing import Any

from rllm_core.contracts.stage import Stage
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import CheckpointError, PipelineError, failures_as
from rllm_core.pipeline.graph import ChosenStage


class Pipeline:
    """The stages of a run, made from their records."""

    def __init__(self, chosen: Sequence[ChosenStage], context: StageContext) -> None:
        self._stages: list[tuple[ChosenStage, Stage]] = [
            (stage, stage.registered.load()(context, stage.params)) for stage in chosen
        ]

    async def run(self, step: TrainStep) -> None:
        """Run all stages; after `step.skip` only those that always run, after `step.play_more` from the first again."""
        position = 0
        while position < len(self._stages):
            chosen, stage = self._stages[position]
            position += 1
            if step.skip_reason and not chosen.plugin.always:
                continue
            start, rounds = time.perf_counter(), step.rounds
            await _run(stage, step, chosen)
            name = chosen.plugin.name
            step.timing_dict[name] = step.timing_dict.get(name, 0.0) + time.perf_counter() - start
            if step.rounds > rounds:
                position = 0

    def state_dict(self) -> dict[str, Any]:
        """State of the stages that keep something between steps."""
        return {name: stage.state_dict() for name, stage in self._stateful().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give every stage its state back.

        Raises:
            CheckpointError: the saved stages are not the stages of this run.
        """
        stages = self._stateful()
        if stages.keys() != state.keys():
            raise CheckpointError(
                f"The checkpoint holds state of {', '.join(state) or 'no stage'}; "
                f"this pipeline keeps state in {', '.join(stages) or 'none'}.",
                "Resume with the rllm.pipeline the run was started with.",
            )
        for name, stage in stages.items():
            stage.load_state_dict(state[name])

    def _stateful(self) -> dict[str, Any]:
        """By qualified name, numbered where it occurs more than once; stages without state may come and go."""
        seen = Counter[str]()
        stateful: dict[str, Any] = {}
        for chosen, stage in self._stages:
            if hasattr(stage, "state_dict"):
                name = chosen.registered.qualified_name
                seen[name] += 1
                stateful[name if seen[name] == 1 else f"{name}#{seen[name]}"] = stage
        return stateful


async def _run(stage: Stage, step: TrainStep, chosen: ChosenStage) -> None:
    """Run one stage; what goes wrong inside names it."""
    name = chosen.registered.qualified_name
    with failures_as(PipelineError, f"Stage {name}"):
        running = stage(step)
        if not isawaitable(running):
            raise PipelineError(f"Stage {name} is called and gives {running!r:.80}.", "Write `async def __call__`.")
        await running
