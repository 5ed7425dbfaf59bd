"""Functions for modules that write episodes without loss, so that reading them returns equal episodes.

A format has no field for some of our values. They are in a field for extra data of its file, under `OURS`. The writer
reads its own data back, and carries each field that differs (`missing_fields`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from rllm_core.data.types import Step
from rllm_record.interchange.drafts import (
    AFTER,
    RESPONSE,
    EpisodeDraft,
    JsonData,
    StepDraft,
    TrajectoryDraft,
    as_json_data,
    text_of,
)
from rllm_record.steps.rows import RecordedEpisode, RecordedTrajectory

OURS = "rllm"
"""Key of our values in the extra data of other formats."""
DEFAULT_FROM = (("reward", "reward_given"), ("id", "uid"), ("step", "uid"), ("batch", "uid"))
"""Fields, each with a second field whose default value contains it."""


def draft_of(recorded: RecordedEpisode) -> EpisodeDraft:
    """Return an episode as JSON data. Values without a JSON type become their `repr`."""
    episode = recorded.episode
    fields = {
        "id": episode.id,
        "uid": recorded.uid,
        "step": recorded.step,
        "batch": recorded.batch,
        "is_correct": bool(episode.is_correct),
        "termination_reason": episode.termination_reason.value,
        "metrics": {name: float(value) for name, value in episode.metrics.items()},
        "data_source": episode.data_source,
        "error": episode.error,
        "task": None if recorded.task is None else as_json_data(dict(recorded.task)),
    }
    return EpisodeDraft("", fields, [_trajectory_draft(each) for each in recorded.trajectories])


def _trajectory_draft(recorded: RecordedTrajectory) -> TrajectoryDraft:
    trajectory = recorded.trajectory
    fields = {
        "name": trajectory.name,
        "uid": recorded.uid,
        "own_uid": trajectory.uid,
        "reward": _real(trajectory.reward),
        "reward_given": _real(recorded.reward_given),
        "reward_used": _real(recorded.reward_used),
        "info": as_json_data(trajectory.info),
    }
    return TrajectoryDraft(fields, [_step_draft(step) for step in trajectory.steps])


def _step_draft(step: Step) -> StepDraft:
    advantage = None if step.advantage is None else np.asarray(step.advantage, np.float64).tolist()
    fields = {
        "prompt_ids": step.prompt_ids.tolist(),
        "response_ids": step.response_ids.tolist(),
        "logprobs": shortest_floats(step.logprobs),
        "reward": _real(step.reward),
        "advantage": advantage,
        "text": step.text,
        "weight_version": int(step.weight_version),
        "version_spans": [[int(span.version), int(span.tokens)] for span in step.version_spans],
        "info": as_json_data(step.info),
    }
    return StepDraft(fields, [as_json_data(dict(message)) for message in step.messages])


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)


def missing_fields(read_back: Mapping[str, Any], ours: Mapping[str, Any]) -> JsonData:
    """Return our fields that a format does not contain, because they differ after its data are read back."""
    found = {key: value for key, value in ours.items() if key not in read_back or not is_equal(read_back[key], value)}
    return found | {key: ours[key] for of, key in DEFAULT_FROM if of in found and key in ours}


def is_equal(first: Any, second: Any) -> bool:
    """True if two values are the same JSON data. NaN equals NaN."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def copy_theirs(data: Mapping[str, Any], name: str) -> JsonData:
    """Return a copy of a format's values in `info` or in a message. Empty if there are none."""
    found = data.get(name)
    return dict(as_json_data(found)) if isinstance(found, dict) else {}


def copy_after(fields: Mapping[str, Any]) -> list[JsonData]:
    """Return a copy of the messages after a trajectory's last model call."""
    found = as_json_data(fields["info"].get(AFTER))
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def digest_of(value: Any) -> str:
    """Return a name for a task that has none: the same for equal data or messages."""
    return f"task-{hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]}"


def first_messages(trajectories: Sequence[TrajectoryDraft]) -> list[JsonData]:
    """Return the messages before the first model call. Empty if there is none."""
    return trajectories[0].steps[0].messages if trajectories and trajectories[0].steps else []


def hide_numbers(data: Any) -> list[JsonData]:
    """Replace NaN and infinite numbers by null, because strict readers of JSON reject them. Return their places."""
    found: list[JsonData] = []

    def visit(value: Any, place: list[str | int]) -> Any:
        if isinstance(value, dict):
            return {key: visit(each, [*place, key]) for key, each in value.items()}
        if isinstance(value, list):
            return [visit(each, [*place, number]) for number, each in enumerate(value)]
        if isinstance(value, float) and not isfinite(value):
            found.append({"place": place, "value": str(value)})
            return None
        return value

    data |= visit(data, [])
    return found


def restore_numbers(data: Any, hidden: Sequence[JsonData]) -> None:
    """Put the numbers back that `hide_numbers` removed."""
    for each in hidden:
        *above, last = each["place"]
        target = data
        for key in above:
            target = target[key]
        target[last] = float(each["value"])


def pop_value(data: JsonData, key: str) -> Any:
    """Remove and return a value. None if it is missing or null. A null stays, so that it is written again."""
    return None if data.get(key) is None else data.pop(key)


def pop_default(data: JsonData, key: str, default: Any) -> None:
    """Remove a value if it is the value that the writer writes by itself."""
    if key in data and is_equal(data[key], default):
        del data[key]


def pop_ours(data: JsonData) -> JsonData:
    """Remove and return our values from the field ``extra`` of an object of ATIF. Empty if there are none."""
    extra = data.get("extra")
    if not isinstance(extra, Mapping) or OURS not in extra:
        return {}
    others = {key: value for key, value in extra.items() if key != OURS}
    data.pop("extra")
    if others:
        data["extra"] = others
    return dict(extra[OURS])


def shortest_floats(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float | None] | None:
    """Return (n,) float32 values as the shortest decimals that read back as the same float32. NaN becomes None.

    Returns:
        None if every value is NaN.
    """
    known = np.asarray(values, np.float32)
    if np.isnan(known).all():
        return None
    return [None if np.isnan(value) else float(str(value)) for value in known]


def exact_or_shortest(shortest: list[float | None] | None, exact: Any) -> list[float | None] | None:
    """Return the values of a file with more digits than a float32, if ours are still the same. Otherwise `shortest`."""
    if exact is None or shortest is None or len(exact) != len(shortest) or None in shortest:
        return shortest
    return list(exact) if shortest_floats(exact) == shortest else shortest


def response_of(fields: Mapping[str, Any]) -> JsonData:
    """Return the assistant message of a step's fields. It has only the text if a change made the message outdated."""
    response = fields["info"].get(RESPONSE)
    try:
        if isinstance(response, dict) and text_of(response) == fields["text"]:
            return dict(response)
    except (KeyError, TypeError, AttributeError):
        # A workflow may use the same name for a different value.
        pass
    return {"role": "assistant", "content": fields["text"]}
