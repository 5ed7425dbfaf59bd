"""The dataset `stored`: tasks of stored episodes, each with all rollouts at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rllm_core.data.types import Episode
from rllm_core.pipeline import reward_of
from rllm_record.steps.rows import Sampler
from rllm_view.rescoring.reading import PARQUET, EpisodesError, read_file, read_record
from rllm_view.rescoring.source import find_episodes
from rllm_view.rescoring.stored.options import StoredParams
from rllm_view.rescoring.stored.task import StoredRollout, StoredTask


def read_stored(params: StoredParams) -> list[StoredTask]:
    """The tasks, in the order in which they were first attempted. All episodes are held in memory.

    A task that was attempted in several steps is one for each of them, unless `params.group_by` is ``task``.

    Raises:
        EpisodesError: there are none with tokens, or they cannot be read.
    """
    path = Path(params.path).expanduser()
    rollouts: dict[tuple[str, int], list[StoredRollout]] = {}
    data: dict[str, Mapping[str, Any]] = {}
    left_out = 0
    for step, file in find_episodes(path).files:
        for rollout, task in _rollouts(file):
            if not _is_good(rollout, params.min_reward):
                left_out += 1
                continue
            name = rollout.episode.task_id
            rollouts.setdefault((name, step if params.group_by == "step" else 0), []).append(rollout)
            data.setdefault(name, task or {})
    if left_out and not rollouts:
        raise EpisodesError(
            "no-episodes",
            f"{path} contains {left_out} rollouts, and none has a reward of at least {params.min_reward:g}.",
            "Lower the option min_reward.",
        )
    if not rollouts:
        raise EpisodesError(
            "no-episodes",
            f"{path} contains no rollout with a model call.",
            "Set the option path to a different folder or file.",
        )
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


def _is_good(rollout: StoredRollout, min_reward: float | None) -> bool:
    """True if every trajectory has at least this reward."""
    rewards = map(reward_of, rollout.episode.trajectories)
    return min_reward is None or all(reward is not None and reward >= min_reward for reward in rewards)


def _rollouts(file: Path) -> Iterator[tuple[StoredRollout, Mapping[str, Any] | None]]:
    """Rollouts of a file, with the data of their tasks if it is stored."""
    from rllm_record.steps.files import sampler_of

    played: Iterable[tuple[Episode, Mapping[str, Any] | None]]
    if file.suffix == PARQUET:
        played = [(each.episode, each.task) for each in read_record(file)]
        sampler = sampler_of(file)
    else:
        played = ((episode, None) for episodes in read_file(file).rounds for episode in episodes)
        sampler = Sampler()
    for episode, task in played:
        if any(trajectory.steps for trajectory in episode.trajectories):
            yield StoredRollout(episode, sampler), task
