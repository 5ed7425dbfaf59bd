"""Lossless conversion of trajectories, groups and episodes to JSON data and back.

float32 values are widened to float64, whose shortest decimal reads back as the same number. An unknown log-prob is
null. Other NaN and infinite values are written in the format of `json`. numpy numbers are written as numbers. `info`
and `metadata` must be JSON data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rllm_core.data.types import Episode, TerminationReason, Trajectory, TrajectoryGroup
from rllm_core.data.version_spans import VersionSpan

SCHEMA_VERSION = 1
"""Increased when existing files can no longer be read."""


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Return JSON data with every token once: the buffer's columns, and each step as a span of them."""
    buffer = trajectory.tokens
    return {
        "uid": trajectory.uid,
        "name": trajectory.name,
        "reward": _number(trajectory.reward),
        "info": trajectory.info,
        "ids": buffer.ids.tolist(),
        "logprobs": [None if value != value else value for value in buffer.logprobs.tolist()],
        "steps": [
            {
                "span": list(step.span),
                "reward": _number(step.reward),
                "advantage": None if step.advantage is None else np.asarray(step.advantage, np.float64).tolist(),
                "text": step.text,
                "weight_version": int(step.weight_version),
                "version_spans": [[int(span.version), int(span.tokens)] for span in step.version_spans],
                "info": step.info,
            }
            for step in trajectory.steps
        ],
    }


def trajectory_from_json(data: dict[str, Any]) -> Trajectory:
    """Inverse of `trajectory_to_json`. The steps need not be in the order of their tokens."""
    trajectory = Trajectory(data["name"], reward=data["reward"], uid=data["uid"], info=data["info"])
    ids, logprobs = data["ids"], data["logprobs"]
    entries = data["steps"]
    # Spans only grow from one model call to the next, so the buffer is filled again in the order of the spans.
    made = {}
    for index in sorted(range(len(entries)), key=lambda index: entries[index]["span"]):
        entry = entries[index]
        segment_start, response_start, end = entry["span"]
        fields = {key: entry[key] for key in ("reward", "advantage", "text", "weight_version", "info")}
        # Logs of earlier versions have no spans.
        fields["version_spans"] = [VersionSpan(*span) for span in entry.get("version_spans", ())]
        made[index] = trajectory.add_step(
            ids[segment_start:response_start], ids[response_start:end], logprobs[response_start:end], **fields
        )
    trajectory.steps = [made[index] for index in range(len(entries))]
    return trajectory


def group_to_json(group: TrajectoryGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "metadata": group.metadata,
        "trajectories": [trajectory_to_json(trajectory) for trajectory in group.trajectories],
    }


def group_from_json(data: dict[str, Any]) -> TrajectoryGroup:
    """Inverse of `group_to_json`."""
    return TrajectoryGroup(
        group_id=data["group_id"],
        metadata=data["metadata"],
        trajectories=[trajectory_from_json(entry) for entry in data["trajectories"]],
    )


def episode_to_json(episode: Episode) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "id": episode.id,
        "is_correct": bool(episode.is_correct),
        "termination_reason": episode.termination_reason.value,
        "metrics": {name: float(value) for name, value in episode.metrics.items()},
        "data_source": episode.data_source,
        "error": episode.error,
        "trajectories": [trajectory_to_json(trajectory) for trajectory in episode.trajectories],
    }


def episode_from_json(data: dict[str, Any]) -> Episode:
    """Inverse of `episode_to_json`.

    Raises:
        ValueError: the data has a different schema version.
    """
    if data["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"episode of schema version {data['schema_version']}, this rllm-core reads {SCHEMA_VERSION}")
    return Episode(
        id=data["id"],
        is_correct=data["is_correct"],
        termination_reason=TerminationReason(data["termination_reason"]),
        metrics=data["metrics"],
        data_source=data["data_source"],
        error=data["error"],
        trajectories=[trajectory_from_json(entry) for entry in data["trajectories"]],
    )


def _number(reward: float | None) -> float | None:
    return None if reward is None else float(reward)
