"""Convert episodes and outcomes to columns of their files, and rows of the files to episodes and outcomes.

The conversion by column is much faster than a conversion by row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from rllm_core.data.codec import trajectory_from_json
from rllm_core.data.messages import Message, read_text
from rllm_core.data.record import OptimizerStep, Outcome
from rllm_core.data.types import Episode, TerminationReason, Trajectory
from rllm_record.steps import schemas
from rllm_record.steps.parquet import RecordError
from rllm_record.steps.rows import RecordedEpisode, RecordedOutcome, RecordedTrajectory

# `json.dumps` with options makes an encoder each time, which takes longer than most values.
_ENCODER = json.JSONEncoder(default=repr)

Columns = Mapping[str, Any]


def episode_table(episodes: Sequence[RecordedEpisode], content: schemas.Content) -> pa.Table:
    """Return the columns of `EPISODES`. Text and tokens are null unless `content` is ``tokens``."""
    known = [recorded.episode for recorded in episodes]
    columns: dict[str, Any] = {
        "uid": [recorded.uid for recorded in episodes],
        "step": [recorded.step for recorded in episodes],
        "batch": [recorded.batch for recorded in episodes],
        "id": [each.id for each in known],
        "task_id": [each.task_id for each in known],
        "data_source": [each.data_source for each in known],
        "is_correct": [bool(each.is_correct) for each in known],
        "termination_reason": [each.termination_reason.value for each in known],
        "error": [_encodable(each.error) for each in known],
        "tries": [recorded.tries for recorded in episodes],
        "metrics": _maps([each.metrics for each in known]),
        "trajectories": _lists(
            [len(recorded.trajectories) for recorded in episodes],
            _trajectories([each for recorded in episodes for each in recorded.trajectories], content),
        ),
    }
    if content == "tokens":
        columns["task"] = [None if recorded.task is None else _json(dict(recorded.task)) for recorded in episodes]
    return pa.table(_arrays(columns, schemas.EPISODES, len(episodes)), schemas.EPISODES)


def outcome_table(outcomes: Sequence[RecordedOutcome]) -> pa.Table:
    """Return the columns of `OUTCOMES`."""
    known = [recorded.outcome for recorded in outcomes]
    columns = {
        "step": [outcome.step for outcome in known],
        "trajectory": [outcome.trajectory for outcome in known],
        "outcome": [outcome.outcome for outcome in known],
        "rule": [outcome.rule for outcome in known],
        "numbers": _maps([outcome.numbers for outcome in known]),
        "group": [outcome.group for outcome in known],
        "peers": _lists(
            [len(outcome.peers) for outcome in known], list(chain.from_iterable(outcome.peers for outcome in known))
        ),
        "name": [recorded.name for recorded in outcomes],
        "episode": [recorded.episode for recorded in outcomes],
        "rollout_step": [recorded.rollout_step for recorded in outcomes],
        "batch": [recorded.batch for recorded in outcomes],
        "estimator": [recorded.estimator for recorded in outcomes],
        "baseline": [recorded.baseline for recorded in outcomes],
        "advantage": [recorded.advantage for recorded in outcomes],
    }
    return pa.table(_arrays(columns, schemas.OUTCOMES, len(outcomes)), schemas.OUTCOMES)


def _trajectories(recorded: Sequence[RecordedTrajectory], content: schemas.Content) -> pa.Array:
    known = [each.trajectory for each in recorded]
    components = [each.info.get("reward_components") for each in known]
    columns: dict[str, Any] = {
        "uid": [each.uid for each in recorded],
        "own_uid": [each.uid for each in known],
        "name": [each.name for each in known],
        "reward_given": [_real(each.reward_given) for each in recorded],
        "reward_used": [_real(each.reward_used) for each in recorded],
        "reward": [_real(each.reward) for each in known],
        "components": _maps([each if isinstance(each, Mapping) else {} for each in components]),
        "steps": _lists([len(each.steps) for each in known], _steps(known, content)),
    }
    if content == "tokens":
        lengths = [len(each.tokens.ids) for each in known]
        columns["ids"] = _lists(lengths, _end_to_end([each.tokens.ids for each in known], np.int32))
        columns["logprobs"] = _lists(lengths, _end_to_end([each.tokens.logprobs for each in known], np.float32))
        columns["info"] = [_json(each.info) for each in known]
    return _structs(columns, schemas.TRAJECTORY, len(recorded))


def _steps(trajectories: Sequence[Trajectory], content: schemas.Content) -> pa.Array:
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    spans = [step.span for step in steps]
    versions = [step.version_spans for step in steps]
    every_version = list(chain.from_iterable(versions))
    columns: dict[str, Any] = {
        "segment_start": [span.segment_start for span in spans],
        "prompt_start": list(chain.from_iterable(map(_prompt_starts, trajectories))),
        "response_start": [span.response_start for span in spans],
        "end": [span.end for span in spans],
        "weight_version": [int(step.weight_version) for step in steps],
        "version_spans": _lists(
            [len(each) for each in versions],
            _structs(
                {
                    "version": [int(each.version) for each in every_version],
                    "tokens": [int(each.tokens) for each in every_version],
                },
                schemas.VERSION_SPAN,
                len(every_version),
            ),
        ),
        "finish_reason": [step.info.get("finish_reason") for step in steps],
        "reward": [_real(step.reward) for step in steps],
        "advantage": [
            None if step.advantage is None else _json(np.asarray(step.advantage, np.float64).tolist()) for step in steps
        ],
    }
    if content == "tokens":
        columns["messages"] = [[_message_row(message) for message in step.messages] for step in steps]
        columns["text"] = [_encodable(step.text) for step in steps]
        columns["info"] = [_json(step.info) for step in steps]
    return _structs(columns, schemas.STEP, len(steps))


def _prompt_starts(trajectory: Trajectory) -> list[int]:
    """Return the start of each step's new prompt tokens: the end of the previous step in the same segment."""
    spans = [step.span for step in trajectory.steps]
    order: Sequence[int] = range(len(spans))
    if spans != sorted(spans):
        order = sorted(order, key=spans.__getitem__)
    starts, end = [0] * len(spans), 0
    for index in order:
        segment_start, _, step_end = spans[index]
        starts[index] = segment_start if segment_start > end else end
        end = step_end
    return starts


def _message_row(message: Message) -> dict[str, str | None]:
    content = message.get("content")
    plain = isinstance(content, str) and message.keys() == {"role", "content"}
    return {
        "role": _encodable(str(message.get("role", ""))),
        "text": _encodable(read_text(message)),
        "data": None if plain else _json(dict(message)),
    }


def _arrays(columns: Columns, fields: Iterable[pa.Field], length: int) -> list[pa.Array]:
    """Return an array for each field. It is null if `columns` has no such column."""
    return [
        _array(columns[field.name], field.type) if field.name in columns else pa.nulls(length, field.type)
        for field in fields
    ]


def _array(values: Any, of: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values if values.type == of else values.cast(of)
    return pa.array(values, of)


def _structs(columns: Columns, of: pa.StructType, length: int) -> pa.Array:
    return pa.StructArray.from_arrays(_arrays(columns, of, length), fields=list(of))


def _lists(lengths: Sequence[int], values: Any) -> pa.Array:
    return pa.ListArray.from_arrays(_offsets(lengths), values if isinstance(values, pa.Array) else pa.array(values))


def _maps(mappings: Sequence[Mapping[str, Any]]) -> pa.Array:
    names = [name for each in mappings for name in each]
    values = [float(value) for each in mappings for value in each.values()]
    offsets = _offsets([len(each) for each in mappings])
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.float64()))


def _offsets(lengths: Sequence[int]) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int32))


def _end_to_end(arrays: Sequence[Any], dtype: Any) -> pa.Array:
    return pa.array(np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype, copy=False))


def _real(value: object) -> float | None:
    """Return a reward as a number. None if it is None or not a number."""
    if type(value) is float:
        return value
    try:
        return None if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _json(value: Any) -> str:
    """Return JSON in ASCII, so that halves of surrogate pairs are kept. Other values are stored as their `repr`."""
    return _ENCODER.encode(value)


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs, because Parquet contains UTF-8, which cannot represent them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def recorded_episode(row: Mapping[str, Any]) -> RecordedEpisode:
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
        termination_reason=TerminationReason(row["termination_reason"]),
        metrics=dict(row["metrics"]),
        data_source=row["data_source"],
        error=row["error"],
    )
    return RecordedEpisode(
        uid=row["uid"],
        step=row["step"],
        batch=row["batch"],
        episode=episode,
        trajectories=tuple(
            RecordedTrajectory(
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
        outcome=row["outcome"],
        rule=row["rule"],
        numbers=dict(row["numbers"]),
        group=row["group"],
        peers=tuple(row["peers"]),
    )
    return RecordedOutcome(
        outcome=outcome,
        rollout_step=row["rollout_step"],
        batch=row["batch"],
        episode=row["episode"],
        name=row["name"],
        estimator=row["estimator"],
        baseline=row["baseline"],
        advantage=row["advantage"],
    )
