"""Convert rollouts and results of reward functions to one line of JSON, to send them to another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall


def json_of_rollout(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as JSON data for `rollout_from_json`. The task's data must be JSON too."""
    return {
        "data": dict(rollout.data),
        "messages": [dict(message) for message in rollout.messages],
        "response": asdict(rollout.response),
        "response_tokens": rollout.response_tokens,
        "state": rollout.state,
    }


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    """Return the rollout with this JSON data."""
    response = dict(data["response"])
    response["tool_calls"] = tuple(ToolCall(**each) for each in response["tool_calls"])
    response["malformed_calls"] = tuple(MalformedToolCall(**each) for each in response["malformed_calls"])
    return Rollout(**{**data, "response": Response(**response)})


def result_to_json(result: Any) -> str:
    """Return a reward's result as JSON. A mapping is unchanged, and a `Score` becomes a mapping."""
    if isinstance(result, Score):
        result = {field.name: getattr(result, field.name) for field in fields(result)}
    return json.dumps(dict(result) if isinstance(result, Mapping) else {"value": result}, default=_plain)


def _plain(value: Any) -> Any:
    """Convert a number of numpy or torch to Python. Convert other objects to text, which is not a valid reward."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if getattr(value, "size", None) == 1 or hasattr(value, "item") else repr(value)
