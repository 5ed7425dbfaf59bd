"""The dataset `stored`: tasks of stored episodes, each with all rollouts at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rllm_core.data.types import Episode
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
    for step, file in find_episodes(path).files:
        for rollout, task in _rollouts(file):
            name = rollout.episode.task_id
            rollouts.setdefault((name, step if params.group_by == "step" else 0), []).append(rollout)
            data.setdefault(name, task or {})
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
