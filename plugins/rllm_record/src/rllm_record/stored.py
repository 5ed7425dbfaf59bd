"""Stored episodes as training data: the dataset `stored`, its tasks, and the stage that loads their rollouts."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rllm_core.contracts.params import NoParams, Params
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.stage import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.codec import episode_to_json
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError
from rllm_core.notices import say, warn_once
from rllm_core.pipeline import episode_metrics, find_reward
from rllm_record.recorder import tokenizer_of
from rllm_record.steps.rows import Sampler
from rllm_record.stored_episodes import EpisodesError, find_episodes, read_record, sampler_in


class StoredParams(Params):
    """Options of the dataset ``stored``."""

    path: str = Field(min_length=1)
    """Directory of a run with `rllm.record=tokens`, or file of its episodes. Also a file of a different format with
    tokens: ATIF, traces of verifiers, or NeMo-Gym."""
    group_by: Literal["step", "task"] = "step"
    """Rollouts of a task to compare. `step`: rollouts from one step, so from one policy. `task`: rollouts from all
    steps."""
    min_reward: float | None = None
    """Smallest reward of a rollout to use. null: all rollouts, also those without a reward."""


TOO_LONG = "stored/too_long"
NOTHING_SAMPLED = "stored/no_sampled_tokens"


@dataclass(frozen=True)
class StoredRollout:
    """A rollout of a task, and its sampler."""

    episode: Episode
    sampler: Sampler

    def require_tokens(self, renderer: Renderer | None) -> None:
        """Check that the trained model has the rollout's tokens. Its vocabulary may have more, such as a padding token.

        Raises:
            ConfigError: the vocabularies differ, and the responses have a different text.
        """
        tokenizer = None if renderer is None else tokenizer_of(renderer)
        if renderer is None or None in (self.sampler.tokenizer, tokenizer) or self.sampler.tokenizer == tokenizer:
            return
        steps = [step for trajectory in self.episode.trajectories for step in trajectory.steps]
        is_same = all(renderer.text(step.response_ids) == step.text for step in steps)
        if not is_same or not any(step.text for step in steps):
            raise ConfigError(
                "tokenizer-mismatch",
                "The stored episodes and the trained model have different tokenizers. For example, the tokens of "
                f"rollout {self.episode.id!r} are a different text.",
                "Train the model that sampled the episodes, or a model with the same vocabulary.",
            )


@dataclass(frozen=True, kw_only=True)
class StoredTask(Task):
    """A task whose rollouts are taken from a store."""

    rollouts: Sequence[StoredRollout] = field(default=(), compare=False, repr=False)

    def content(self) -> dict[str, Any]:
        """Return the task's data and rollouts, which a resumed run compares with its start."""
        return {**self.data, "rollouts": [episode_to_json(rollout.episode) for rollout in self.rollouts]}

    def episodes(self) -> list[Episode]:
        """Return copies of all rollouts in their order, numbered from 0. Copies, because stages change them."""
        return [self._copy(index, rollout.episode) for index, rollout in enumerate(self.rollouts)]

    def examples(self, renderer: Renderer | None) -> list[Episode]:
        """Return the rollouts for fine-tuning: their sampled tokens are trained.

        Raises:
            ConfigError: they were sampled with a different vocabulary.
        """
        for rollout in self.rollouts:
            rollout.require_tokens(renderer)
        return self.episodes()

    def _copy(self, index: int, stored: Episode) -> Episode:
        episode = copy.deepcopy(stored)
        episode.id, episode.data_source = f"{self.id}:{index}", self.data_source
        for trajectory in episode.trajectories:
            # The same rollout number may have been generated in several steps of a run.
            trajectory.uid = f"{episode.id}{trajectory.uid.removeprefix(stored.id)}"
        return episode


def read_tasks(params: StoredParams) -> list[StoredTask]:
    """Return the tasks, in the order in which they were first run. All episodes are kept in memory.

    A task with rollouts in several steps becomes a task per step, unless `params.group_by` is ``task``.

    Raises:
        EpisodesError: there are none with tokens, or they cannot be read.
    """
    path = Path(params.path).expanduser()
    rollouts: dict[tuple[str, int], list[StoredRollout]] = {}
    data: dict[str, Mapping[str, Any]] = {}
    unused: Counter[str] = Counter()
    for number, file in find_episodes(path).files:
        for step, rollout, task in _rollouts(number, file):
            if reason := _unused_reason(rollout, params.min_reward):
                unused[reason] += 1
                continue
            name = rollout.episode.task_id
            rollouts.setdefault((name, step if params.group_by == "step" else 0), []).append(rollout)
            data.setdefault(name, task or {})
    counts = ", ".join(f"{count} {reason}" for reason, count in unused.items())
    if not rollouts:
        raise EpisodesError(
            "no-episodes",
            f"{path} contains no rollout to use: {counts or 'it is empty'}.",
            "Lower the option min_reward, or set the option path to a different directory or file.",
        )
    if counts:
        say(f"stored rollouts of {path} that are not used: {counts}")
    steps = Counter(name for name, _ in rollouts)
    return [
        StoredTask(
            id=name if steps[name] == 1 else f"{name}@{step}",
            data=dict(data[name]),
            data_source=of_task[0].episode.data_source,
            rollouts=of_task,
        )
        for (name, step), of_task in rollouts.items()
    ]


def _unused_reason(rollout: StoredRollout, min_reward: float | None) -> str:
    """Return the reason why a rollout is not used. Empty if every trajectory has at least this reward."""
    trajectories = rollout.episode.trajectories
    if not any(trajectory.steps for trajectory in trajectories):
        return "without a model call"
    rewards = map(find_reward, trajectories)
    if min_reward is None or all(reward is not None and reward >= min_reward for reward in rewards):
        return ""
    return f"without a reward of at least min_reward={min_reward:g}"


def _rollouts(number: int, file: Path) -> Iterator[tuple[int, StoredRollout, Mapping[str, Any] | None]]:
    """Yield the steps and rollouts of a file, with the data of their tasks if it is stored.

    Only a file of a different format contains several steps.
    """
    sampler = sampler_in(file)
    for generated in read_record(file):
        yield max(number, generated.step), StoredRollout(generated.episode, sampler), generated.task


class LoadStored:
    """Loads all stored rollouts of every task in the batch, each time the batch is drawn."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._temperature = context.config.sampling.train.temperature
        self._max_context = context.max_context
        self._has_warned = False

    async def __call__(self, step: TrainStep) -> None:
        brought = [episode for task in step.tasks for episode in self._episodes(task, step.renderer)]
        step.generated += brought
        step.metrics |= episode_metrics(*step.generated_by_batch)
        step.episodes, dropped = [], []
        for episode in brought:
            if rule := self._drop_rule(episode):
                dropped.append((rule, episode))
                numbers = {"tokens": _longest_row(episode), "limit": self._max_context} if rule == TOO_LONG else {}
                step.decide("masked", rule, episode.trajectories, numbers=numbers)
            else:
                step.episodes.append(episode)
        if dropped:
            step.count("batch/rows_dropped", len(dropped))
            self._warn(dropped)
        if not step.episodes:
            step.skip("nothing_stored")

    def _drop_rule(self, episode: Episode) -> str:
        """Return the rule that drops an episode. Empty if it fits.

        A response that is cut off would have the reward of a different response, so the whole episode is dropped.
        """
        if not any(trajectory.response_length for trajectory in episode.trajectories):
            return NOTHING_SAMPLED
        return TOO_LONG if _longest_row(episode) > self._max_context else ""

    def _warn(self, dropped: Sequence[tuple[str, Episode]]) -> None:
        """Warn about the first dropped rollouts of the run."""
        if self._has_warned:
            return
        self._has_warned = True
        keys = "training.max_length; verl: actor_rollout_ref.rollout.max_model_len"
        reasons = {
            TOO_LONG: f"longer than the run's longest context, {self._max_context:,} tokens ({keys})",
            NOTHING_SAMPLED: "without a sampled token",
        }
        for rule, reason in reasons.items():
            if tasks := [episode.task_id for why, episode in dropped if why == rule]:
                rollouts = f"{len(tasks)} stored rollouts, such as of task {tasks[0]!r}, are {reason}"
                warn_once(f"{rollouts}: dropped. batch/rows_dropped counts them.")

    def _episodes(self, task: Task, renderer: Renderer | None) -> list[Episode]:
        """Return the stored rollouts. Raise ConfigError if it has none, or if they cannot be used for training."""
        if not isinstance(task, StoredTask):
            raise ConfigError(
                "no-stored-rollout",
                f"Stage stored loads stored rollouts, and task {task.id!r} has none.",
                "Set data.train_dataset={name: stored, path: DIRECTORY}; `--stored DIRECTORY` sets both.",
            )
        for rollout in task.rollouts:
            rollout.require_tokens(renderer)
            self._require_temperature(rollout.sampler)
        episodes = task.episodes()
        for episode in episodes:
            _require_logprobs(episode)
        return episodes

    def _require_temperature(self, sampler: Sampler) -> None:
        stored, here = sampler.temperature, self._temperature
        if stored is not None and stored != here:
            raise ConfigError(
                "temperature-mismatch",
                f"The stored episodes were sampled at temperature {stored:g}, and sampling.train.temperature is "
                f"{here:g}: importance ratios would compare different distributions.",
                f"Set sampling.train.temperature={stored:g}.",
            )


def _longest_row(episode: Episode) -> int:
    """Return the number of tokens in the longest row of an episode."""
    spans = (step.span for trajectory in episode.trajectories for step in trajectory.steps)
    return max((span.end - span.segment_start for span in spans), default=0)


def _require_logprobs(episode: Episode) -> None:
    """Raise ConfigError if a log-prob is missing. If the trained weights computed it, its ratio would be 1."""
    for trajectory in episode.trajectories:
        buffer = trajectory.tokens
        unknown = int(np.isnan(buffer.logprobs[buffer.sampled]).sum())
        if unknown:
            raise ConfigError(
                "missing-logprobs",
                f"{unknown} of {int(buffer.sampled.sum())} sampled tokens of trajectory {trajectory.uid!r} are stored "
                "without a log-prob.",
                "Store episodes from an engine that reports log-probs.",
            )
