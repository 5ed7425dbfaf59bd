"""Frames between the trainer and the gateway: a JSON object and token columns, behind their lengths.

Nothing is pickled: a frame of the gateway's process, which talks to anybody's code, is data and never a program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

HEAD = 8
"""Bytes in front of a frame: the length of its JSON and of its columns, four each, little-endian."""
LARGEST = 1 << 28
"""Bytes of one part; longer ones are no frames."""


class FrameError(EOFError):
    """What came is no frame: the connection is of no use any more."""


@dataclass(frozen=True)
class Frame:
    """One message, either way."""

    body: Mapping[str, Any]
    """JSON data; ``op`` says what it is."""
    ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """(n,) token ids."""
    logprobs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """(m,) log-probs; may be NaN, which JSON cannot say."""


def encoded(frame: Frame) -> bytes:
    """The bytes of a frame."""
    body = orjson.dumps({**frame.body, "n_ids": len(frame.ids)})
    columns = frame.ids.astype("<i4", copy=False).tobytes() + frame.logprobs.astype("<f4", copy=False).tobytes()
    return len(body).to_bytes(4, "little") + len(columns).to_bytes(4, "little") + body + columns


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        EOFError: the other end has gone, or what it sent is no frame.
    """
    try:
        head = await reader.readexactly(HEAD)
        sizes = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
        if max(sizes) > LARGEST:
            raise FrameError(f"a frame of {max(sizes)} bytes")
        data = await reader.readexactly(sum(sizes))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise EOFError from error
    return _decoded(data[: sizes[0]], data[sizes[0] :])


def _decoded(body: bytes, columns: bytes) -> Frame:
    try:
        said = orjson.loads(body)
        end = 4 * said.pop("n_ids")
        ids = np.frombuffer(columns[:end], "<i4").astype(np.int32, copy=False)
        return Frame(said, ids, np.frombuffer(columns[end:], "<f4").astype(np.float32, copy=False))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FrameError("what came is no frame") from error
