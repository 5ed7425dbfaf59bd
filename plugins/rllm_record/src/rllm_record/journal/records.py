"""What a journal keeps: the calls of a round, each by its seed, and the configuration that they were made with."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.data.version_spans import VersionSpan

CONFIG = b"config 1 "
"""Begins a record that says which configuration the calls behind it were made with; the number is of the schema."""
_ANSWERED, _UNANSWERED = b"a", b"u"
_FIXED = struct.Struct("<cQIBqIH")
_FAILED = struct.Struct("<cQI?")
_SPAN = struct.Struct("<qI")
_IDS, _LOGPROBS = np.dtype("<i4"), np.dtype("<f4")
_FINISH: tuple[Literal["stop", "length"], ...] = ("stop", "length")


@dataclass(frozen=True, eq=False)
class KeptCall:
    """A call that was answered."""

    seed: int
    """The call's own, which no other of the run has."""
    asked: int
    """`checksum_of_call`."""
    completion: Completion

    @property
    def latest_version(self) -> int:
        """The newest version of the weights that sampled a token of it."""
        versions = [span.version for span in self.completion.version_spans]
        return max(versions, default=self.completion.weight_version)


@dataclass(frozen=True)
class KeptFailure:
    """A call that was not answered."""

    seed: int
    asked: int
    """As of `KeptCall`."""
    error: str | None
    """What the engine raised; None: whoever had asked went away, as at a time limit."""


def checksum_of_call(prompt_ids: NDArray[np.int32], sampling: SamplingParams) -> int:
    """32 bits for what was asked: the prompt, (n,) int32, and how to sample.

    Beside the seed, which follows from a digest of the prompt: they tell calls apart whose seeds were made otherwise.
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
    """Few differ in a run: those of each version of the weights."""
    return crc32(repr(parameters).encode())


def encoded(seed: int, asked: int, completion: Completion) -> bytes:
    """The body of a call's record."""
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


def encoded_failure(seed: int, asked: int, error: BaseException) -> bytes:
    """The body of the record of a call that ended with an error."""
    gone = isinstance(error, asyncio.CancelledError)
    return _FAILED.pack(_UNANSWERED, seed, asked, gone) + str(error).encode("utf-8", "replace")


def decoded(body: bytes) -> KeptCall | KeptFailure:
    """The call of a record."""
    if body.startswith(_UNANSWERED):
        _, seed, asked, gone = _FAILED.unpack_from(body)
        return KeptFailure(seed, asked, None if gone else body[_FAILED.size :].decode())
    _, seed, asked, finish, version, tokens, spans = _FIXED.unpack_from(body)
    place = _FIXED.size + spans * _SPAN.size
    return KeptCall(
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
