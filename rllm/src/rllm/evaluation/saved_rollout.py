"""One line of a saved evaluation: an episode as runs store them, and a digest of its task."""

from __future__ import annotations

import json
from dataclasses import dataclass

from rllm.evaluation.rollouts import FinishedRollout
from rllm.rows.task_content import as_json_value, content_of, hash_of
from rllm_core.data.codec import episode_from_json, episode_to_json
from rllm_core.data.types import Episode, Task


@dataclass(frozen=True)
class SavedRollout:
    """A line."""

    episode: Episode
    task: str
    """Digest of the task; see `task_digest`."""


def task_digest(task: Task) -> str:
    """Return a hash of a task's id, content and data source, as 16 hexadecimal digits."""
    return hash_of([task.id, content_of(task), task.data_source]).hex()


def rollout_to_line(finished: FinishedRollout) -> str:
    """Return a finished rollout as a line of JSON. Values without a JSON type, such as dates, become text."""
    line = episode_to_json(finished.episode) | {"task": task_digest(finished.task)}
    return json.dumps(line, ensure_ascii=False, default=as_json_value)


def rollout_from_line(line: str) -> SavedRollout:
    """Inverse of `rollout_to_line`.

    Raises:
        ValueError: another schema version wrote it.
    """
    data = json.loads(line)
    return SavedRollout(episode_from_json(data), data["task"])
