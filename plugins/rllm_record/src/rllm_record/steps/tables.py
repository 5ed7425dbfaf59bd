"""The columns of the record, and rows to and from them. A text that is JSON says so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from rllm_core.data.codec import trajectory_from_json
from rllm_core.data.record import Fate
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_record.steps.errors import RecordError
from rllm_record.steps.rows import PlayedEpisode, PlayedTrajectory, RecordedFate

Content = Literal["fates", "tokens"]
"""``fates``: ids, numbers and rules; ``tokens``: texts and tokens too."""
CONTENTS: tuple[Content, ...] = get_args(Content)
NUMBERS = pa.map_(pa.string(), pa.float64())

STEP = pa.struct(
    {
        "segment_start": pa.int32(),
        "response_start": pa.int32(),
        "end": pa.int32(),
        "weight_version": pa.int32(),
        "version_spans": pa.list_(pa.struct({"version": pa.int32(), "tokens": pa.int32()})),
        "finish_reason": pa.string(),
        "reward": pa.float64(),
        "advantage": pa.string(),  # JSON
        "text": pa.string(),
        "info": pa.string(),  # JSON
    }
)
TRAJECTORY = pa.struct(
    {
        "uid": pa.string(),
        "own_uid": pa.string(),
        "name": pa.string(),
        "reward_given": pa.float64(),
        "reward_used": pa.float64(),
        "reward": pa.float64(),
        "components": NUMBERS,
        "steps": pa.list_(STEP),
        "ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "info": pa.string(),  # JSON
    }
)
EPISODES = pa.schema(
    {
        "uid": pa.string(),
        "step": pa.int32(),
        "round": pa.int32(),
        "id": pa.string(),
        "task_id": pa.string(),
        "data_source": pa.string(),
        "is_correct": pa.bool_(),
        "ending": pa.string(),
        "error": pa.string(),
        "tries": pa.int32(),
        "metrics": NUMBERS,
        "trajectories": pa.list_(TRAJECTORY),
        "task": pa.string(),  # JSON
    }
)
FATES = pa.schema(
    {
        "step": pa.int32(),
        "trajectory": pa.string(),
        "fate": pa.string(),
        "rule": pa.string(),
        "numbers": NUMBERS,
        "group": pa.string(),
        "peers": pa.list_(pa.string()),
        "name": pa.string(),
        "episode": pa.string(),
        "played_step": pa.int32(),
        "round": pa.int32(),
    }
)


def episode_rows(episodes: Sequence[PlayedEpisode], content: Content) -> list[dict[str, Any]]:
    """Rows of `EPISODES`; without texts and tokens where `content` is ``fates``."""
    return [_episode_row(played, content) for played in episodes]


def _episode_row(played: PlayedEpisode, content: Content) -> dict[str, Any]:
    episode = played.episode
    return {
        "uid": played.uid,
        "step": played.step,
        "round": played.round,
        "id": episode.id,
        "task_id": episode.task_id,
        "data_source": episode.data_source,
        "is_correct": bool(episode.is_correct),
        "ending": episode.termination_reason.value,
        "error": _encodable(episode.error),
        "tries": played.tries,
        "metrics": _numbers(episode.metrics),
        "trajectories": [_trajectory_row(each, content) for each in played.trajectories],
        "task": None if content == "fates" or played.task is None else _json(dict(played.task)),
    }


def _trajectory_row(played: PlayedTrajectory, content: Content) -> dict[str, Any]:
    trajectory = played.trajectory
    buffer = trajectory.tokens
    components = trajectory.info.get("reward_components")
    row: dict[str, Any] = {
        "uid": played.uid,
        "own_uid": trajectory.uid,
        "name": trajectory.name,
        "reward_given": _real(played.reward_given),
        "reward_used": _real(played.reward_used),
        "reward": _real(trajectory.reward),
        "components": _numbers(components) if isinstance(components, Mapping) else [],
        "steps": [_step_row(step, content) for step in trajectory.steps],
    }
    if content == "tokens":
        row |= {"ids": buffer.ids, "logprobs": buffer.logprobs, "info": _json(trajectory.info)}
    return row


def _step_row(step: Step, content: Content) -> dict[str, Any]:
    row: dict[str, Any] = {
        "segment_start": step.span.segment_start,
        "response_start": step.span.response_start,
        "end": step.span.end,
        "weight_version": int(step.weight_version),
        "version_spans": [{"version": int(each.version), "tokens": int(each.tokens)} for each in step.version_spans],
        "finish_reason": step.info.get("finish_reason"),
        "reward": _real(step.reward),
        "advantage": None if step.advantage is None else _json(np.asarray(step.advantage, np.float64).tolist()),
    }
    if content == "tokens":
        row |= {"text": _encodable(step.text), "info": _json(step.info)}
    return row


def played_episode(row: Mapping[str, Any]) -> PlayedEpisode:
    """A row of `EPISODES` that has tokens, with the episode as it was.

    Raises:
        RecordError: it has none.
    """
    entries = row["trajectories"]
    if any(entry["ids"] is None for entry in entries):
        raise RecordError(
            f"The record of step {row['step']} has no tokens.", "A run records them with rllm.record=tokens."
        )
    trajectories = [_trajectory(entry) for entry in entries]
    episode = Episode(
        id=row["id"],
        trajectories=trajectories,
        is_correct=row["is_correct"],
        termination_reason=TerminationReason(row["ending"]),
        metrics=dict(row["metrics"]),
        data_source=row["data_source"],
        error=row["error"],
    )
    return PlayedEpisode(
        uid=row["uid"],
        step=row["step"],
        round=row["round"],
        episode=episode,
        trajectories=tuple(
            PlayedTrajectory(
                uid=entry["uid"],
                trajectory=trajectory,
                reward_given=entry["reward_given"],
                reward_used=entry["reward_used"],
            )
            for entry, trajectory in zip(entries, trajectories, strict=True)
        ),
        task=None if row["task"] is None else json.loads(row["task"]),
    )


def _trajectory(entry: Mapping[str, Any]) -> Trajectory:
    steps = [
        {
            "span": [step["segment_start"], step["response_start"], step["end"]],
            "reward": step["reward"],
            "advantage": None if step["advantage"] is None else json.loads(step["advantage"]),
            "text": step["text"],
            "weight_version": step["weight_version"],
            "version_spans": [[span["version"], span["tokens"]] for span in step["version_spans"]],
            "info": json.loads(step["info"]),
        }
        for step in entry["steps"]
    ]
    columns = {"name": entry["name"], "reward": entry["reward"], "uid": entry["own_uid"], "steps": steps}
    return trajectory_from_json(
        columns | {"ids": entry["ids"], "logprobs": entry["logprobs"], "info": json.loads(entry["info"])}
    )


def fate_rows(fates: Sequence[RecordedFate]) -> list[dict[str, Any]]:
    """Rows of `FATES`."""
    return [
        {
            "step": recorded.fate.step,
            "trajectory": recorded.fate.trajectory,
            "fate": recorded.fate.fate,
            "rule": recorded.fate.rule,
            "numbers": _numbers(recorded.fate.numbers),
            "group": recorded.fate.group,
            "peers": list(recorded.fate.peers),
            "name": recorded.name,
            "episode": recorded.episode,
            "played_step": recorded.played_step,
            "round": recorded.round,
        }
        for recorded in fates
    ]


def recorded_fate(row: Mapping[str, Any]) -> RecordedFate:
    """A row of `FATES`."""
    fate = Fate(
        step=row["step"],
        trajectory=row["trajectory"],
        fate=row["fate"],
        rule=row["rule"],
        numbers=dict(row["numbers"]),
        group=row["group"],
        peers=tuple(row["peers"]),
    )
    return RecordedFate(
        fate=fate, played_step=row["played_step"], round=row["round"], episode=row["episode"], name=row["name"]
    )


def _numbers(numbers: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, float(value)) for name, value in numbers.items()]


def _real(value: object) -> float | None:
    """A reward as a number; None where there is none, or a workflow gave something else."""
    try:
        return None if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _json(value: Any) -> str:
    """ASCII, so that halves of surrogate pairs pass. What is not JSON data is kept as it prints."""
    return json.dumps(value, default=repr)


def _encodable(text: str) -> str:
    """Parquet holds UTF-8, which has no halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()
