"""Stages and validation of `rllm prefer`: load the completions of a step, and compute their advantages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rllm.builtin.preferences.comparison import MIN_PROMPTS, PreferParams, RewardModelParams, compare, count_prompts
from rllm.builtin.preferences.rows import MARGIN, read_margin, read_preference
from rllm.builtin.supervised.stages import Examples, add_turns, report_trained_tokens
from rllm.builtin.supervised.turns import ExamplesParams, Turn, make_turns
from rllm.rows.example import Conversation, PlainText
from rllm.rows.hidden_parts import check_visible_parts
from rllm.rows.problem import RowError, naming
from rllm.rows.row_limit import RowFitter, RowLimit, report_rows
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.batch import build_batch
from rllm_core.data.messages import read_text
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.notices import warn_once
from rllm_core.pipeline.update_stages import BuildBatch

ROLE = "completion"
"""Role of all completions, for `rllm.algorithm.loss_map`."""
RowOptions = ExamplesParams | RewardModelParams


def make_completions(task: Task, renderer: Renderer, params: RowOptions) -> Episode:
    """Return the completions of a row as trajectories, without a limit of their length.

    Raises:
        ConfigError: the row is no preference.
    """
    made = []
    with naming(f"Row {task.id!r}"):
        completions = read_preference(task.data)
        if isinstance(params, RewardModelParams):
            turns = {name: [make_score_turn(example, renderer)] for name, example in completions.items()}
            info = {MARGIN: read_margin(task.data)}
        else:
            turns = {name: make_turns(example, renderer, params) for name, example in completions.items()}
            info = {}
    for name in completions:
        trajectory = Trajectory(name, uid=f"{task.id}:0:{name}", info=dict(info))
        add_turns(trajectory, turns[name])
        made.append(trajectory)
    return Episode(
        id=f"{task.id}:0",
        trajectories=made,
        termination_reason=TerminationReason.ENV_DONE,
        data_source=task.data_source,
    )


def make_score_turn(example: Conversation | PlainText, renderer: Renderer) -> Turn:
    """Return a whole conversation as a prompt, and one more token: backends return its score as that token's log-prob.

    The conversation has the tokens with which the reward `model` and TRL score it. It has no start of a next message.

    Raises:
        RowError: the model's chat template does not show a part of the conversation.
        ConfigError: the run's renderer has no tokenizer.
    """
    if isinstance(example, PlainText):
        (turn,) = make_turns(example, renderer, ExamplesParams())
        tokens = np.concatenate((turn.prompt_ids, turn.response_ids))
        return Turn(tokens, tokens[-1:], example.completion, turn.messages)
    tokenizer = getattr(renderer, "tokenizer", None)
    if tokenizer is None:
        raise ConfigError(
            "renderer-without-tokenizer",
            "The run's renderer cannot write a whole conversation.",
            "Set rllm.renderer=template.",
        )
    messages = [dict(message) for message in example.messages]
    try:
        check_visible_parts(example.messages, example.tools, renderer, example.place_of)
        renderer.prompt(example.messages, example.tools)
    except RolloutError as error:
        raise RowError("messages", f"cannot be rendered: {error.message.rstrip('.')}", error.hint) from error
    tools = {"tools": list(example.tools)} if example.tools else {}
    tokens = np.array(tokenizer.apply_chat_template(messages, return_dict=False, **tools), np.int32)
    return Turn(tokens, tokens[-1:], read_text(example.messages[-1]), example.messages)


def preference_groups(
    tasks: Sequence[Task], renderer: Renderer, params: RowOptions, fitter: RowFitter
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


class Preferences(Examples):
    """Stage that brings the completions of a step's tasks, as `Examples` brings examples."""

    def _load(self, step: TrainStep, renderer: Renderer) -> None:
        step.episodes, step.trajectory_groups = preference_groups(step.tasks, renderer, self._params, self._fitter)


class Prefer:
    """Stage that computes the gradient of a loss of preferences as advantages, with the current weights."""

    def __init__(self, context: StageContext, params: PreferParams | RewardModelParams) -> None:
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
        report_trained_tokens(step, step.batch)
        step.metrics |= {f"preference/{name}": value for name, value in found.metrics.items()}


class LearnScores(Preferences):
    """Stage that brings the pairs of a step's tasks, and computes the gradient of their scores as advantages."""

    def __init__(self, context: StageContext, params: RewardModelParams) -> None:
        super().__init__(context, params)
        self._rest = (BuildBatch(context, NoParams()), Prefer(context, params))

    async def __call__(self, step: TrainStep) -> None:
        await super().__call__(step)
        for stage in self._rest:
            if not step.skip_reason:
                await stage(step)


async def validate_preferences(
    backend: Backend,
    engine: RolloutEngine,
    tasks: Sequence[Task],
    size: int,
    params: RowOptions,
    preferences: PreferParams | RewardModelParams,
) -> dict[str, float]:
    """Return ``val/<data_source>/<metric>`` for the metrics of stage `prefer`: means over the rows of the data.

    Also return the numbers of rows that are cut or dropped, if any.
    """
    by_source: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        by_source[task.data_source].append(task)
    found: dict[str, float] = {}
    limit = RowLimit.lowest(params, engine.max_context)
    fitters = {source: RowFitter(limit) for source in by_source}
    for source, rows in by_source.items():
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        _, groups = preference_groups(rows, engine.renderer, params, fitters[source])
        smallest = MIN_PROMPTS[preferences.loss]
        for batch in map(build_batch, _batches(groups, size, smallest)):
            if count_prompts(batch) < smallest:
                warn_once(
                    f"{batch.n_rows} rows of {source!r} are not validated on, because loss kto compares "
                    "completions of 2 prompts or more. Add rows with other prompts, or increase data.val_batch_size."
                )
                continue
            for name, (total, count) in (await compare(backend, batch, preferences)).totals.items():
                sums[name] += total
                counts[name] += count
        found |= {f"val/{source}/{name}": sums[name] / counts[name] for name in sums}
    return found | report_rows(fitters)


def _batches(groups: Sequence[TrajectoryGroup], size: int, smallest: int) -> list[Sequence[TrajectoryGroup]]:
    """Cut groups into batches with `size` groups. If fewer than `smallest` are left, they join the last batch."""
    size = max(size, smallest)
    ends = [*range(size, len(groups) - smallest + 1, size), len(groups)]
    return [groups[start:end] for start, end in pairwise([0, *ends]) if end > start]
