"""One line of a saved evaluation: an episode as runs store them, and what its rewards saw."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rllm.evaluation.recording import Scored
from rllm.evaluation.rollouts import Played
from rllm_core.contracts.reward import Rollout
from rllm_core.data.codec import episode_from_json, episode_to_json
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall
from rllm_core.data.types import Episode, Task


@dataclass(frozen=True)
class SavedScore:
    """The inputs and the result of an evaluation's rewards for a rollout."""

    rollout: Rollout
    value: float | None
    correct: bool | None


@dataclass(frozen=True)
class SavedRollout:
    """A line."""

    episode: Episode
    task: str
    """Digest of the task; see `task_digest`."""
    scores: tuple[SavedScore, ...]
    """Scores by the evaluation's rewards. Empty if only the environment gives a reward."""


def task_digest(task: Task) -> str:
    """Return a hash of a task's id, data and data source, as 16 hexadecimal digits."""
    text = _dumps([task.id, dict(task.data), task.data_source], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def serialize_rollout(played: Played) -> str:
    """A finished attempt as a line of JSON."""
    return rollout_to_line(
        SavedRollout(played.episode, task_digest(played.task), tuple(_saved_score(scored) for scored in played.scored))
    )


def rollout_to_line(saved: SavedRollout) -> str:
    """Return a line of JSON. Values without a JSON type, such as dates in a task, become text."""
    scores = [
        {"rollout": asdict(score.rollout), "value": score.value, "correct": score.correct} for score in saved.scores
    ]
    return _dumps(episode_to_json(saved.episode) | {"task": saved.task, "scores": scores})


def rollout_from_line(line: str) -> SavedRollout:
    """Inverse of `rollout_to_line`.

    Raises:
        ValueError: another schema version wrote it.
    """
    data = json.loads(line)
    scores = (
        SavedScore(rollout_from_json(score["rollout"]), score["value"], score["correct"])
        for score in data.get("scores", ())
    )
    return SavedRollout(episode_from_json(data), data["task"], tuple(scores))


def _saved_score(scored: Scored) -> SavedScore:
    return SavedScore(scored.rollout, scored.score.value, scored.score.correct)


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    """Return the rollout that a reward receives, from the JSON data of `dataclasses.asdict`.

    Raises:
        KeyError, TypeError: the data have another form.
    """
    response = dict(data["response"])
    response["tool_calls"] = tuple(ToolCall(**call) for call in response["tool_calls"])
    response["malformed_calls"] = tuple(MalformedToolCall(**call) for call in response["malformed_calls"])
    return Rollout(**{**data, "response": Response(**response)})


def _dumps(data: Mapping[str, Any] | Sequence[Any], **options: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=_plain, **options)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
