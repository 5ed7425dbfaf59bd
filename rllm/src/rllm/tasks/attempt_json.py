"""Attempts and what a reward function returned, as one line of JSON: for another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from rllm_core.contracts.reward import Attempt, Score
from rllm_core.data.messages import MalformedToolCall, Reply, ToolCall


def json_of_attempt(attempt: Attempt) -> dict[str, Any]:
    """What `attempt_of` takes, as far as the task's data are JSON."""
    return {
        "data": dict(attempt.data),
        "messages": [dict(message) for message in attempt.messages],
        "reply": asdict(attempt.reply),
        "response_tokens": attempt.response_tokens,
        "state": attempt.state,
    }


def attempt_of(held: Mapping[str, Any]) -> Attempt:
    """The attempt that `json_of_attempt` was given."""
    reply = dict(held["reply"])
    reply["tool_calls"] = tuple(ToolCall(**each) for each in reply["tool_calls"])
    reply["malformed_calls"] = tuple(MalformedToolCall(**each) for each in reply["malformed_calls"])
    return Attempt(**{**held, "reply": Reply(**reply)})


def json_of(result: Any) -> str:
    """What a reward returned: a mapping stays one, a `Score` becomes one."""
    if isinstance(result, Score):
        result = {field.name: getattr(result, field.name) for field in fields(result)}
    return json.dumps(dict(result) if isinstance(result, Mapping) else {"value": result}, default=_plain)


def _plain(value: Any) -> Any:
    """A number of numpy or torch as one of Python; anything else as text, which no reward is."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if getattr(value, "size", None) == 1 or hasattr(value, "item") else repr(value)
