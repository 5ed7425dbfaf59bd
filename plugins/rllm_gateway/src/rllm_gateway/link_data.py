"""The values that the trainer and the gateway send each other: a JSON object, and arrays under some of its keys.

The gateway's process serves foreign code, so its frames are data. It never unpickles them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from rllm_core.contracts.engine import Completion, TopTokens
from rllm_core.data.version_spans import VersionSpan
from rllm_gateway.session import Said, SessionTrace, TracedCall
from rllm_serving.connection import Encoding

SIZE = 4
"""Number of bytes that contain the length of the JSON object."""
MAX_BYTES = 1 << 29
"""Maximum size of a frame."""
ARRAYS = "arrays"
"""Key of the names, dtypes and shapes of the arrays, which follow the JSON object in this order."""
DTYPES = ("<i4", "<f4")


def _dump(body: Mapping[str, Any]) -> bytes:
    arrays = {name: value for name, value in body.items() if isinstance(value, np.ndarray)}
    said = {name: value for name, value in body.items() if name not in arrays}
    head = orjson.dumps({**said, ARRAYS: [[name, each.dtype.str, each.shape] for name, each in arrays.items()]})
    return len(head).to_bytes(SIZE, "little") + head + b"".join(each.tobytes() for each in arrays.values())


def _load(data: bytes) -> dict[str, Any]:
    start = SIZE + int.from_bytes(data[:SIZE], "little")
    try:
        body: dict[str, Any] = orjson.loads(data[SIZE:start])
        for name, dtype, shape in body.pop(ARRAYS):
            end = start + 4 * math.prod(shape)
            body[name] = np.frombuffer(data[start:end], DTYPES[DTYPES.index(dtype)]).reshape(shape)
            start = end
        return body
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("the bytes are not a frame") from error


FRAMES = Encoding(_dump, _load)


def trace_of(data: dict[str, Any]) -> SessionTrace:
    """Return the trace that has these fields."""
    calls = tuple(TracedCall(**call) for call in data["calls"])
    said = None if data["said"] is None else Said(**data["said"])
    return SessionTrace(**{**data, "calls": calls, "said": said})


def completion_as_json(completion: Completion) -> dict[str, Any]:
    """Return the fields of a completion."""
    top = completion.top
    return {
        "finish_reason": completion.finish_reason,
        "weight_version": completion.weight_version,
        "version_spans": [list(span) for span in completion.version_spans],
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        **({} if top is None else {"top_ids": top.ids, "top_logprobs": top.logprobs}),
    }


def completion_of(data: Mapping[str, Any]) -> Completion:
    """Return the completion that has these fields."""
    return Completion(
        token_ids=data["token_ids"],
        logprobs=data["logprobs"],
        finish_reason=data["finish_reason"],
        weight_version=data["weight_version"],
        version_spans=tuple(VersionSpan(*span) for span in data["version_spans"]),
        top=TopTokens(data["top_ids"], data["top_logprobs"]) if "top_ids" in data else None,
    )
