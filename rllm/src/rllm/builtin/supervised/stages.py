"""Stages of fine-tuning: `examples` brings the rows of a step, `supervise` marks their tokens as trained equally."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rllm.builtin.supervised.options import ExamplesParams
from rllm.builtin.supervised.rows import read_row
from rllm.builtin.supervised.turns import make_turns
from rllm.rows.example import HasExamples
from rllm.rows.problem import naming
from rllm.rows.row_limit import RowFitter, RowLimit
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory
from rllm_core.pipeline.context_stage import ContextStage

ROLE = "assistant"
"""Role of all trained tokens, for `rllm.algorithm.loss_map`."""


def make_examples(task: Task, renderer: Renderer, params: ExamplesParams) -> list[Episode]:
    """Return the examples of a task, without a limit of their length: one for a row of data, and one for each stored
    rollout.

    Raises:
        ConfigError: the row is no example.
    """
    if isinstance(task, HasExamples):
        return task.examples(renderer)
    trajectory = Trajectory(ROLE, uid=f"{task.id}:0:{ROLE}")
    with naming(f"Row {task.id!r}"):
        turns = make_turns(read_row(task.data), renderer, params)
    for turn in turns:
        trajectory.add_step(turn.prompt_ids, turn.response_ids, None, text=turn.text, messages=turn.messages)
    return [
        Episode(
            id=f"{task.id}:0",
            trajectories=[trajectory],
            termination_reason=TerminationReason.ENV_DONE,
            data_source=task.data_source,
        )
    ]


def as_supervised(batch: TokenBatch) -> TokenBatch:
    """Return the batch for imitation: all trained tokens count equally, and have no sampling policy."""
    unknown = np.where(batch.loss_mask, np.float32(np.nan), np.float32(0))
    replaced = replace(batch, sampling_logprobs=unknown)
    return replaced.with_columns(old_logprobs=unknown, advantages=batch.loss_mask.astype(np.float32))


class Examples:
    """Stage that brings the rows of a step's tasks."""

    def __init__(self, context: StageContext, params: ExamplesParams) -> None:
        self._params = params
        self._fitter = RowFitter(RowLimit.lowest(params, context.max_context))

    async def __call__(self, step: TrainStep) -> None:
        assert step.renderer is not None
        made = [make_examples(task, step.renderer, self._params) for task in step.tasks]
        step.episodes = [self._fitter.fit(episode) for episodes in made for episode in episodes]
        step.generated += step.episodes
        step.metrics |= self._fitter.report("batch")
        step.metrics["batch/examples"] = float(sum(bool(episode.trajectories) for episode in step.episodes))
        if not any(episode.trajectories for episode in step.episodes):
            step.skip("no_trained_tokens")


class Supervise(ContextStage):
    """Stage that completes the batch without a forward pass, because `cross_entropy` needs no old log-probs."""

    async def __call__(self, step: TrainStep) -> None:
        step.batch = as_supervised(step.filled_batch)
        step.estimators = ("supervise",) * len(step.batch.groups)
        for name in [name for name in step.metrics if name.startswith("staleness/")]:
            del step.metrics[name]  # no weights sampled these tokens
        step.metrics["batch/trained_tokens"] = float(step.batch.loss_mask.sum())
