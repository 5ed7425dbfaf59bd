"""Sessions, traces and completions as frames have them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from rllm_core.contracts.engine import Completion, TopTokens
from rllm_core.data.version_spans import VersionSpan
from rllm_gateway.frames import Frame
from rllm_gateway.session import Said, SessionTrace, TracedCall


def trace_as_json(trace: SessionTrace) -> dict[str, Any]:
    """JSON data of a trace."""
    return asdict(trace)


def trace_of(data: dict[str, Any]) -> SessionTrace:
    """The trace that `trace_as_json` wrote."""
    calls = tuple(TracedCall(**call) for call in data["calls"])
    said = None if data["said"] is None else Said(**data["said"])
    return SessionTrace(**{**data, "calls": calls, "said": said})


def completion_frame(number: int, completion: Completion) -> Frame:
    """What was sampled for the frame of this number."""
    body = {
        "op": "sampled",
        "number": number,
        "finish_reason": completion.finish_reason,
        "weight_version": completion.weight_version,
        "version_spans": [list(span) for span in completion.version_spans],
        "n_tokens": len(completion.token_ids),
    }
    ids, logprobs, top = completion.token_ids, completion.logprobs, completion.top
    if top is not None:
        # They follow the sampled tokens.
        ids, logprobs = np.append(ids, top.ids), np.append(logprobs, top.logprobs)
    return Frame(body, ids, logprobs)


def completion_of(frame: Frame) -> Completion:
    """The completion that `completion_frame` wrote."""
    body, size = frame.body, frame.body["n_tokens"]
    top = None
    if len(frame.ids) > size:
        top = TopTokens(frame.ids[size:].reshape(size, -1), frame.logprobs[size:].reshape(size, -1))
    return Completion(
        token_ids=frame.ids[:size],
        logprobs=frame.logprobs[:size],
        finish_reason=body["finish_reason"],
        weight_version=body["weight_version"],
        version_spans=tuple(VersionSpan(*span) for span in body["version_spans"]),
        top=top,
    )
