"""Convert rollouts and results of reward functions to one line of JSON, to send them to another process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
        "response_ids": list(rollout.response_ids),
        "task_batch": rollout.task_batch,
    }


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
    """Return the rollout with this JSON data."""
    response = dict(data["response"])
    response["tool_calls"] = tuple(ToolCall(**each) for each in response["tool_calls"])
    response["malformed_calls"] = tuple(MalformedToolCall(**each) for each in response["malformed_calls"])
    return Rollout(**{**data, "response": Response(**response), "response_ids": tuple(data["response_ids"])})


def results_to_json(results: Sequence[Score]) -> str:
    """Return scores as JSON of a list of mappings."""
    return json.dumps([asdict(each) for each in results])
