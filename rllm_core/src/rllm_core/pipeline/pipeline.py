"""Pipeline: runs the stages of one step and measures the time of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from rllm_core.contracts.params import NoParams
from rllm_core.contracts.stage import Stage, StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import CheckpointError, PipelineError, failures_as
from rllm_core.pipeline.graph import StageChoice, count_rollout_stages
from rllm_core.pipeline.metrics import episode_metrics

OF_EPISODES = "batch/episodes"
"""A metric that exists only if a stage counts episodes. It is computed over all rollout batches."""
Notify = Callable[[str, TrainStep, str], None]
"""Receives the name of an event of `Observer`, the step, and the name of the stage."""
NextBatch = Callable[[], Awaitable[TrainStep]]
"""Returns the step that generated the next rollout batch."""


def ignore_event(event: str, step: TrainStep, stage: str) -> None:
    """Do nothing. A pipeline without observers uses it."""


async def no_more_batches() -> TrainStep:
    """Reject requests for more batches, for a step that already has all its batches.

    Raises:
        PipelineError: always.
    """
    raise PipelineError(
        "no-training-tasks", "A stage requests more tasks, and none are left.", "Remove the call of `generate_more`."
    )


class Pipeline:
    """The stages of a run in two parts: first the rollout stages, then all others.

    The parts are separate so that a rollout batch can be generated before training needs it.
    """

    def __init__(self, chosen: Sequence[StageChoice], context: StageContext, notify: Notify = ignore_event) -> None:
        self._notify = notify
        self._stages: list[tuple[StageChoice, Stage]] = [
            (stage, stage.registered.load()(context, stage.params)) for stage in chosen
        ]
        self._cut = count_rollout_stages(chosen)

    async def run(self, step: TrainStep, next_batch: NextBatch = no_more_batches) -> None:
        """Run both parts."""
        await self.generate(step)
        await self.train(step, next_batch)

    async def generate(self, step: TrainStep) -> None:
        """Run the stages that generate a rollout batch."""
        for chosen, stage in self._stages[: self._cut]:
            await self._measure_stage(stage, step, chosen)

    async def train(self, step: TrainStep, next_batch: NextBatch = no_more_batches) -> None:
        """Run all other stages.

        After `step.skip`, only stages that always run are called. After `step.generate_more`, the stages run again from
        the first of this part, with another rollout batch.
        """
        await _take_batches(step, next_batch)
        position = self._cut
        while position < len(self._stages):
            chosen, stage = self._stages[position]
            await self._measure_stage(stage, step, chosen)
            position = self._cut if await _take_batches(step, next_batch) else position + 1

    async def _measure_stage(self, stage: Stage, step: TrainStep, chosen: StageChoice) -> None:
        """Run a stage, unless the step is skipped."""
        if step.skip_reason and not chosen.plugin.always:
            return
        name, start = chosen.plugin.name, time.perf_counter()
        self._notify("on_stage_start", step, name)
        try:
            await _run(stage, step, chosen)
        finally:
            self._notify("on_stage_end", step, name)
        step.timing_dict[name] = step.timing_dict.get(name, 0.0) + time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all stages that store data between steps."""
        return {name: state for name, stage in self._stateful().items() if (state := stage.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of every stage.

        Raises:
            CheckpointError: the saved stages are not the stages of this run.
        """
        stages = {name: stage for name, stage in self._stateful().items() if name in state or stage.state_dict()}
        if stages.keys() != state.keys():
            raise CheckpointError(
                "run-changed",
                f"The checkpoint has state of {', '.join(state) or 'no stage'}, and "
                f"this pipeline has state in {', '.join(stages) or 'none'}.",
                "Resume with the value of rllm.pipeline with which the run started.",
            )
        for name, stage in stages.items():
            stage.load_state_dict(state[name])

    def _stateful(self) -> dict[str, Any]:
        """Return the stages with state, by qualified name, numbered if a name occurs several times. Stages without
        state may change between runs."""
        seen = Counter[str]()
        stateful: dict[str, Any] = {}
        for chosen, stage in self._stages:
            if hasattr(stage, "state_dict"):
                name = chosen.registered.qualified_name
                seen[name] += 1
                stateful[name if seen[name] == 1 else f"{name}#{seen[name]}"] = stage
        return stateful


async def _take_batches(step: TrainStep, next_batch: NextBatch) -> bool:
    """Add the rollout batches that the step requests. Return True if it requested any."""
    asked = step.asks_for_more
    while step.asks_for_more:
        step.take_rollout_batch(await next_batch())
        if OF_EPISODES in step.metrics:
            step.metrics |= episode_metrics(*step.generated_by_batch)
    return asked


async def _run(stage: Stage, step: TrainStep, chosen: StageChoice) -> None:
    """Run one stage. Errors inside it are reported with its name."""
    name = chosen.registered.qualified_name
    with failures_as(PipelineError, f"Stage {name}"):
        running = stage(step)
        if not isawaitable(running):
            raise PipelineError(
                "stage-not-async", f"Stage {name} is called and gives {running!r:.80}.", "Write `async def __call__`."
            )
        await running


class ContextStage:
    """A stage that stores the run's context and has no options."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context
