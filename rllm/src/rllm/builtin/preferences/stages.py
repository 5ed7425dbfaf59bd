"""Stages of `rllm prefer`: `preferences` brings the completions of a step, `prefer` computes their advantages."""

from __future__ import annotations

from collections.abc import Sequence

from rllm.builtin.preferences.comparison import MIN_PROMPTS, compare, count_prompts
from rllm.builtin.preferences.options import PreferParams
from rllm.builtin.preferences.rows import read_preference
from rllm.builtin.supervised.options import ExamplesParams
from rllm.builtin.supervised.turns import make_turns
from rllm.rows.problem import naming
from rllm.rows.row_limit import RowFitter, RowLimit
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.notices import warn_once

ROLE = "completion"
"""Role of all completions, for `rllm.algorithm.loss_map`."""


def make_completions(task: Task, renderer: Renderer, params: ExamplesParams) -> Episode:
    """Return the completions of a row as trajectories, without a limit of their length.

    Raises:
        ConfigError: the row is no preference.
    """
    made = []
    with naming(f"Row {task.id!r}"):
        completions = read_preference(task.data)
        turns = {name: make_turns(example, renderer, params) for name, example in completions.items()}
    for name in completions:
        trajectory = Trajectory(name, uid=f"{task.id}:0:{name}")
        for turn in turns[name]:
            trajectory.add_step(turn.prompt_ids, turn.response_ids, None, text=turn.text, messages=turn.messages)
        made.append(trajectory)
    return Episode(
        id=f"{task.id}:0",
        trajectories=made,
        termination_reason=TerminationReason.ENV_DONE,
        data_source=task.data_source,
    )


def preference_groups(
    tasks: Sequence[Task], renderer: Renderer, params: ExamplesParams, fitter: RowFitter
) -> tuple[list[Episode], list[TrajectoryGroup]]:
    """Return the episode of each row, and a group for each row that `fitter` does not drop.

    Raises:
        ConfigError: a row is no preference, or too long (see `RowFitter.fit`).
    """
    episodes = [fitter.fit(make_completions(task, renderer, params), together=True) for task in tasks]
    return episodes, [
        TrajectoryGroup(group_id=f"{episode.id}:{ROLE}", trajectories=episode.trajectories)
        for episode in episodes
        if episode.trajectories
    ]


class Preferences:
    """Stage that brings the completions of a step's tasks."""

    def __init__(self, context: StageContext, params: ExamplesParams) -> None:
        self._params = params
        self._fitter = RowFitter(RowLimit.lowest(params, context.max_context))

    async def __call__(self, step: TrainStep) -> None:
        assert step.renderer is not None
        step.episodes, step.trajectory_groups = preference_groups(step.tasks, step.renderer, self._params, self._fitter)
        step.generated += step.episodes
        step.metrics |= self._fitter.report("batch")
        step.metrics["batch/examples"] = float(len(step.trajectory_groups))
        if not step.trajectory_groups:
            step.skip("no_trained_tokens")


class Prefer:
    """Stage that computes the gradient of a loss of preferences as advantages, with the current weights."""

    def __init__(self, context: StageContext, params: PreferParams) -> None:
        self._backend = context.backend
        self._params = params

    async def __call__(self, step: TrainStep) -> None:
        if count_prompts(step.filled_batch) < MIN_PROMPTS[self._params.loss]:
            warn_once(
                "Steps with 1 prompt make no update, because loss kto compares the completions of 2 prompts or more. "
                "Increase data.train_batch_size, or max_length of the stage `preferences`."
            )
            step.skip("too_few_prompts")
            return
        found = await compare(self._backend, step.filled_batch, self._params)
        step.batch = found.batch.with_columns(advantages=found.advantages())
        step.estimators = (self._params.loss,) * len(step.batch.groups)
        for name in [name for name in step.metrics if name.startswith("staleness/")]:
            del step.metrics[name]  # no weights sampled these tokens
        step.metrics["batch/trained_tokens"] = float(step.batch.loss_mask.sum())
        step.metrics |= {f"preference/{name}": value for name, value in found.metrics.items()}
