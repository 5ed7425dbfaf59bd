"""Records of a journal: the model calls of a task batch, each with its seed, and the digest of the run's config.

Each record of a file has a length, a number and a checksum. If the process was killed, the file may end with an
incomplete record. That record was never acknowledged, so it is ignored. Any other difference is damage.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import BackendError

WITHOUT = "To sample these batches again with newer weights, add `rllm.trainer.observers=[{name: journal, keep: off}]`."
"""Hint that explains how a run continues without its journal."""


class JournalError(BackendError):
    """The journal cannot be written, or is damaged. A retry of the rollout cannot help."""


_HEAD = struct.Struct("<III")
"""Length of the body, number of the record, checksum of the body."""
_SUM = struct.Struct("<I")
"""Checksum of the head. Without it, a changed length would look like an incomplete record."""
_OVERHEAD = _HEAD.size + _SUM.size


@dataclass(frozen=True)
class CompleteRecords:
    """The complete records of a file."""

    records: list[bytes]
    length: int
    """Size of the records in the file, in bytes. Bytes after that belong to an incomplete record."""


def frame_record(number: int, body: bytes) -> bytes:
    """Return the bytes of a record. `number` is its number in the file, from 0."""
    head = _HEAD.pack(len(body), number, crc32(body))
    return head + _SUM.pack(crc32(head)) + body


def read_frames(path: Path) -> CompleteRecords:
    """Return the complete records of a file.

    Raises:
        JournalError: a record is damaged.
    """
    content = path.read_bytes()
    records, place = [], 0
    for body, end in _frames(content, path):
        records.append(body)
        place = end
    return CompleteRecords(records, place)


def _frames(content: bytes, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the body of each record, and the position of its end."""
    place = number = 0
    while len(content) - place >= _OVERHEAD:
        head = content[place : place + _HEAD.size]
        length, named, expected = _HEAD.unpack(head)
        (checksum,) = _SUM.unpack_from(content, place + _HEAD.size)
        if checksum != crc32(head) or named != number:
            raise _damage_error(path, number)
        start = place + _OVERHEAD
        body = content[start : start + length]
        if len(body) < length:
            return
        if crc32(body) != expected:
            raise _damage_error(path, number)
        place, number = start + length, number + 1
        yield body, place


def _damage_error(path: Path, number: int) -> JournalError:
    return JournalError(
        "damaged-journal",
        f"Record {number} of {path} has changed since it was written.",
        f"Copy the file back from a backup. {WITHOUT}",
    )


CONFIG = b"config 1 "
"""Start of a record with the digest of the config of the calls after it. The number is the schema version."""
_ANSWERED, _UNANSWERED = b"a", b"u"
_FIXED = struct.Struct("<cQIBqIH")
_FAILED = struct.Struct("<cQI?")
_SPAN = struct.Struct("<qI")
_IDS, _LOGPROBS = np.dtype("<i4"), np.dtype("<f4")
_FINISH: tuple[Literal["stop", "length"], ...] = ("stop", "length")


@dataclass(frozen=True, eq=False)
class StoredCall:
    """A call with a response."""

    seed: int
    """Seed of the call, unique in the run."""
    asked: int
    """Checksum of the call, from `checksum_of_call`."""
    completion: Completion

    @property
    def latest_version(self) -> int:
        """Latest weight version that sampled a token of the response."""
        versions = [span.version for span in self.completion.version_spans]
        return max(versions, default=self.completion.weight_version)


@dataclass(frozen=True)
class StoredFailure:
    """A call without a response."""

    seed: int
    asked: int
    """See `StoredCall`."""
    error: str | None
    """Message of the engine's error. None if the call was cancelled, for example by a time limit."""


def checksum_of_call(prompt_ids: NDArray[np.int32], sampling: SamplingParams) -> int:
    """Return a checksum of 32 bits of the prompt, (n,) int32, and the sampling parameters.

    The seed already depends on a digest of the prompt. The checksum also separates calls with seeds from a different
    source.
    """
    parameters = (
        sampling.max_tokens,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.stop,
        sampling.weight_version,
        # Appended only if it is set, so that journals of earlier versions keep their checksums.
        *([sampling.json_schema] if sampling.json_schema is not None else []),
    )
    return crc32(_bytes(prompt_ids, _IDS), _checksum_of(parameters))


@lru_cache
def _checksum_of(parameters: tuple[object, ...]) -> int:
    """Return the checksum of sampling parameters. A run has few different ones: they change with the weight version."""
    return crc32(repr(parameters).encode())


def encode_call(seed: int, asked: int, completion: Completion) -> bytes:
    """Return the body of a call's record."""
    spans = completion.version_spans
    fixed = _FIXED.pack(
        _ANSWERED,
        seed,
        asked,
        _FINISH.index(completion.finish_reason),
        completion.weight_version,
        len(completion.token_ids),
        len(spans),
    )
    arrays = _bytes(completion.token_ids, _IDS) + _bytes(completion.logprobs, _LOGPROBS)
    return fixed + b"".join(_SPAN.pack(*span) for span in spans) + arrays if spans else fixed + arrays


def _bytes(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    return (array if array.dtype == dtype else array.astype(dtype)).tobytes()


def encode_failure(seed: int, asked: int, error: BaseException) -> bytes:
    """Return the body of the record of a failed call."""
    gone = isinstance(error, asyncio.CancelledError)
    return _FAILED.pack(_UNANSWERED, seed, asked, gone) + str(error).encode("utf-8", "replace")


def decode_call(body: bytes) -> StoredCall | StoredFailure:
    """Return the call of a record."""
    if body.startswith(_UNANSWERED):
        _, seed, asked, gone = _FAILED.unpack_from(body)
        return StoredFailure(seed, asked, None if gone else body[_FAILED.size :].decode())
    _, seed, asked, finish, version, tokens, spans = _FIXED.unpack_from(body)
    place = _FIXED.size + spans * _SPAN.size
    return StoredCall(
        seed,
        asked,
        Completion(
            token_ids=np.frombuffer(body, _IDS, tokens, place).astype(np.int32),
            logprobs=np.frombuffer(body, _LOGPROBS, tokens, place + tokens * _IDS.itemsize).astype(np.float32),
            finish_reason=_FINISH[finish],
            weight_version=version,
            version_spans=tuple(VersionSpan(*span) for span in _SPAN.iter_unpack(body[_FIXED.size : place])),
        ),
    )
