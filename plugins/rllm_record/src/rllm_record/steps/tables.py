"""Convert rows of the files to episodes and outcomes, and optimizer steps to rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rllm_core.data.codec import trajectory_from_json
from rllm_core.data.messages import Message
from rllm_core.data.record import OptimizerStep, Outcome
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_record.steps.errors import RecordError
from rllm_record.steps.rows import PlayedEpisode, PlayedTrajectory, RecordedOutcome


def played_episode(row: Mapping[str, Any]) -> PlayedEpisode:
    """Convert a row of `EPISODES` with tokens to an episode.

    Raises:
        RecordError: the row has no tokens.
    """
    entries = row["trajectories"]
    if any(entry["ids"] is None for entry in entries):
        raise RecordError(
            "record-without-tokens",
            f"The record of step {row['step']} has no tokens.",
            "To record tokens, train with rllm.record=tokens.",
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


def update_rows(steps: Sequence[OptimizerStep]) -> list[dict[str, Any]]:
    """Return the rows of `UPDATES`."""
    return [{**vars(step), "optimizer_step": step.number} for step in steps]


def recorded_outcome(row: Mapping[str, Any]) -> RecordedOutcome:
    """Convert a row of `OUTCOMES` to a `RecordedOutcome`."""
    outcome = Outcome(
        step=row["step"],
        trajectory=row["trajectory"],
        outcome=row["fate"],
        rule=row["rule"],
        numbers=dict(row["numbers"]),
        group=row["group"],
        peers=tuple(row["peers"]),
    )
    return RecordedOutcome(
        outcome=outcome,
        played_step=row["played_step"],
        round=row["round"],
        episode=row["episode"],
        name=row["name"],
        estimator=row["estimator"],
        baseline=row["baseline"],
        advantage=row["advantage"],
    )
