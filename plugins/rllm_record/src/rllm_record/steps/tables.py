"""Episodes, fates and optimiser steps as rows of their files, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllm_core.data.codec import trajectory_from_json
from rllm_core.data.messages import Message, text_of
from rllm_core.data.record import Fate, OptimizerStep
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_record.steps.errors import RecordError
from rllm_record.steps.rows import PlayedEpisode, PlayedTrajectory, RecordedFate
from rllm_record.steps.schemas import Content

# `json.dumps` with options makes an encoder each time, which takes longer than most values.
_ENCODER = json.JSONEncoder(default=repr)


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
        "steps": [
            _step_row(step, start, content)
            for step, start in zip(trajectory.steps, _prompt_starts(trajectory), strict=True)
        ],
    }
    if content == "tokens":
        row |= {"ids": buffer.ids, "logprobs": buffer.logprobs, "info": _json(trajectory.info)}
    return row


def _prompt_starts(trajectory: Trajectory) -> list[int]:
    """Where the tokens begin that are new to the model in each step: behind the step before it, in its segment."""
    spans = [step.span for step in trajectory.steps]
    starts, end = [0] * len(spans), 0
    for index in sorted(range(len(spans)), key=spans.__getitem__):
        starts[index] = max(spans[index].segment_start, end)
        end = spans[index].end
    return starts


def _message_row(message: Message) -> dict[str, str | None]:
    content = message.get("content")
    plain = isinstance(content, str) and message.keys() == {"role", "content"}
    return {
        "role": _encodable(str(message.get("role", ""))),
        "text": _encodable(text_of(message)),
        "data": None if plain else _json(dict(message)),
    }


def _step_row(step: Step, prompt_start: int, content: Content) -> dict[str, Any]:
    span = step.span
    row: dict[str, Any] = {
        "segment_start": span.segment_start,
        "prompt_start": prompt_start,
        "response_start": span.response_start,
        "end": span.end,
        "weight_version": int(step.weight_version),
        "version_spans": [{"version": int(each.version), "tokens": int(each.tokens)} for each in step.version_spans],
        "finish_reason": step.info.get("finish_reason"),
        "reward": _real(step.reward),
        "advantage": None if step.advantage is None else _json(np.asarray(step.advantage, np.float64).tolist()),
    }
    if content == "tokens":
        messages = [_message_row(message) for message in step.messages]
        row |= {"messages": messages, "text": _encodable(step.text), "info": _json(step.info)}
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
    made = trajectory_from_json(
        columns | {"ids": entry["ids"], "logprobs": entry["logprobs"], "info": json.loads(entry["info"])}
    )
    for step, row in zip(made.steps, entry["steps"], strict=True):
        step.messages = [_message(message) for message in row["messages"] or ()]
    return made


def _message(row: Mapping[str, Any]) -> Message:
    found: Message = {"role": row["role"], "content": row["text"]} if row["data"] is None else json.loads(row["data"])
    return found


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
            "estimator": recorded.estimator,
            "baseline": recorded.baseline,
            "advantage": recorded.advantage,
        }
        for recorded in fates
    ]


def update_rows(steps: Sequence[OptimizerStep]) -> list[dict[str, Any]]:
    """Rows of `UPDATES`."""
    return [{**vars(step), "optimizer_step": step.number} for step in steps]


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
        fate=fate,
        played_step=row["played_step"],
        round=row["round"],
        episode=row["episode"],
        name=row["name"],
        estimator=row["estimator"],
        baseline=row["baseline"],
        advantage=row["advantage"],
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
    return _ENCODER.encode(value)


def _encodable(text: str) -> str:
    """Parquet holds UTF-8, which has no halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()
