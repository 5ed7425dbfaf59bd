"""One line of a saved evaluation: an episode as runs store them, and a digest of its task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllm.evaluation.rollouts import FinishedRollout
from rllm_core.data.codec import episode_from_json, episode_to_json
from rllm_core.data.types import Episode, Task


@dataclass(frozen=True)
class SavedRollout:
    """A line."""

    episode: Episode
    task: str
    """Digest of the task; see `task_digest`."""


def task_digest(task: Task) -> str:
    """Return a hash of a task's id, data and data source, as 16 hexadecimal digits."""
    text = _dumps([task.id, dict(task.data), task.data_source], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def rollout_to_line(finished: FinishedRollout) -> str:
    """Return a finished rollout as a line of JSON. Values without a JSON type, such as dates, become text."""
    return _dumps(episode_to_json(finished.episode) | {"task": task_digest(finished.task)})


def rollout_from_line(line: str) -> SavedRollout:
    """Inverse of `rollout_to_line`.

    Raises:
        ValueError: another schema version wrote it.
    """
    data = json.loads(line)
    return SavedRollout(episode_from_json(data), data["task"])


def _dumps(data: Mapping[str, Any] | Sequence[Any], **options: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=_plain, **options)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
