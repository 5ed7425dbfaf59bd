"""The values that the trainer and the gateway send each other: a JSON object and token columns.

The gateway's process serves foreign code, so its frames are data. It never unpickles them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, TopTokens
from rllm_core.data.version_spans import VersionSpan
from rllm_gateway.session import Said, SessionTrace, TracedCall
from rllm_serving.connection import Encoding

SIZE = 4
"""Number of bytes that contain the length of the JSON object."""
MAX_BYTES = 1 << 29
"""Maximum size of a frame."""


@dataclass(frozen=True)
class Frame:
    """A request or an answer."""

    body: Mapping[str, Any]
    """JSON data; a request's kind is its ``op``."""
    ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """(n,) token ids."""
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """(m,) log-probs. They may be NaN, which JSON does not have."""


def _dump(frame: Frame) -> bytes:
    body = orjson.dumps({**frame.body, "n_ids": len(frame.ids)})
    columns = frame.ids.astype("<i4", copy=False).tobytes() + frame.logprobs.astype("<f4", copy=False).tobytes()
    return len(body).to_bytes(SIZE, "little") + body + columns


def _load(data: bytes) -> Frame:
    start = SIZE + int.from_bytes(data[:SIZE], "little")
    try:
        body = orjson.loads(data[SIZE:start])
        end = start + 4 * body.pop("n_ids")
        ids = np.frombuffer(data[start:end], "<i4").astype(np.int32, copy=False)
        return Frame(body, ids, np.frombuffer(data[end:], "<f4").astype(np.float32, copy=False))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("the bytes are not a frame") from error


FRAMES = Encoding(_dump, _load)


def trace_of(data: dict[str, Any]) -> SessionTrace:
    """Return the trace that has these fields."""
    calls = tuple(TracedCall(**call) for call in data["calls"])
    said = None if data["said"] is None else Said(**data["said"])
    return SessionTrace(**{**data, "calls": calls, "said": said})


def completion_frame(completion: Completion) -> Frame:
    """Return the answer to a request for a completion."""
    body = {
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
