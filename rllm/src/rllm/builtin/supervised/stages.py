"""Stages and validation of `rllm sft`: load the rows of a step, and mark their tokens as trained equally."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rllm.builtin.supervised.rows import read_row
from rllm.builtin.supervised.turns import ExamplesParams, Turn, make_turns
from rllm.rows.example import HasExamples
from rllm.rows.problem import naming
from rllm.rows.row_limit import RowFitter, RowLimit, report_rows
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.pipeline.pipeline import ContextStage

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
    add_turns(trajectory, turns)
    return [
        Episode(
            id=f"{task.id}:0",
            trajectories=[trajectory],
            termination_reason=TerminationReason.ENV_DONE,
            data_source=task.data_source,
        )
    ]


def add_turns(trajectory: Trajectory, turns: Sequence[Turn]) -> None:
    """Add the turns of an example to its trajectory."""
    for turn in turns:
        trajectory.add_step(turn.prompt_ids, turn.response_ids, None, text=turn.text, messages=turn.messages)


def make_imitation_batch(batch: TokenBatch) -> TokenBatch:
    """Return the batch for imitation: all trained tokens count equally, and have no sampling policy."""
    unknown = np.where(batch.loss_mask, np.float32(np.nan), np.float32(0))
    replaced = replace(batch, sampling_logprobs=unknown)
    return replaced.with_columns(old_logprobs=unknown, advantages=batch.loss_mask.astype(np.float32))


class Examples:
    """Stage that brings the rows of a step's tasks."""

    def __init__(self, context: StageContext, params: Any) -> None:
        self._params = params
        self._fitter = RowFitter(RowLimit.lowest(params, context.max_context))

    async def __call__(self, step: TrainStep) -> None:
        assert step.renderer is not None
        self._load(step, step.renderer)
        step.generated += step.episodes
        step.metrics |= self._fitter.report("batch")
        examples = sum(bool(episode.trajectories) for episode in step.episodes)
        step.metrics["batch/examples"] = float(examples)
        if not examples:
            step.skip("no_trained_tokens")

    def _load(self, step: TrainStep, renderer: Renderer) -> None:
        made = [make_examples(task, renderer, self._params) for task in step.tasks]
        step.episodes = [self._fitter.fit(episode) for episodes in made for episode in episodes]


class Supervise(ContextStage):
    """Stage that completes the batch without a forward pass, because `cross_entropy` needs no old log-probs."""

    async def __call__(self, step: TrainStep) -> None:
        step.batch = make_imitation_batch(step.filled_batch)
        step.estimators = ("supervise",) * len(step.batch.groups)
        report_trained_tokens(step, step.batch)


def report_trained_tokens(step: TrainStep, batch: TokenBatch) -> None:
    """Report the number of trained tokens, and no staleness, because no weights sampled them."""
    for name in [name for name in step.metrics if name.startswith("staleness/")]:
        del step.metrics[name]
    step.metrics["batch/trained_tokens"] = float(batch.loss_mask.sum())


async def validate_examples(
    backend: Backend, engine: RolloutEngine, tasks: Sequence[Task], size: int, params: ExamplesParams
) -> dict[str, float]:
    """Return ``val/<data_source>/loss``: the mean of -logprob over the trained tokens, in nats.

    Also return the numbers of rows that are cut or dropped, if any.
    """
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    limit = RowLimit.lowest(params, engine.max_context)
    fitters: dict[str, RowFitter] = defaultdict(lambda: RowFitter(limit))
    for start in range(0, len(tasks), size):
        made = [each for task in tasks[start : start + size] for each in make_examples(task, engine.renderer, params)]
        episodes = [fitters[each.data_source].fit(each) for each in made]
        groups = [TrajectoryGroup(group_id=each.id, trajectories=each.trajectories) for each in episodes]
        batch = make_imitation_batch(build_batch(groups))
        if not batch.n_rows:
            continue
        # The backend computes log-probs that no sampler reported.
        logprobs = (await backend.process(batch, frozenset({"old_logprobs"}))).old_logprobs
        assert logprobs is not None
        owners = np.repeat(batch.group, batch.row_lengths)
        for index, episode in enumerate(episodes):
            trained = batch.loss_mask & (owners == index)
            sums[episode.data_source] -= float(logprobs[trained].sum(dtype=np.float64))
            counts[episode.data_source] += int(trained.sum())
    found = {f"val/{source}/loss": sums[source] / count for source, count in counts.items() if count}
    return found | report_rows(fitters)
