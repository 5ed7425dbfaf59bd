"""Requests to the process that runs vLLM, and its answers: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rllm_core.data.version_spans import VersionSpan
from rllm_vllm.tokenizer import Marks

SCHEMA = "rllm_json_schema"
"""The schema's name in ``SamplingParams.extra_args``."""


@dataclass(frozen=True)
class Start:
    """Make the engine; answered with `Started`."""

    arguments: Mapping[str, Any]
    """Of vLLM's ``AsyncEngineArgs``."""
    marks: Marks


@dataclass(frozen=True)
class Started:
    max_context: int


@dataclass(frozen=True)
class Generate:
    """Sample one reply; answered with `Sampled`."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_ids: tuple[int, ...]
    json_schema: str | None = None
    """As `SamplingParams.json_schema`."""


@dataclass(frozen=True)
class Sampled:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version_spans: tuple[VersionSpan, ...]
    """Of all tokens, in order."""


@dataclass(frozen=True)
class LoadWeights:
    """Take all weights from the safetensors files in a folder, and forget what is cached; answered with None."""

    directory: str
    version: int
    """What `Sampled` says of the tokens that they sample."""


@dataclass(frozen=True)
class Failure:
    """The answer to a request that could not be done."""

    what: str
    """Type and words of the exception."""


@dataclass(frozen=True)
class Unsupported:
    """The answer to a request that vLLM cannot sample for: the parts of an `UnsupportedSamplingError`."""

    code: str
    message: str
    hint: str


Body = Start | Generate | LoadWeights
Answer = Started | Sampled | Unsupported | Failure | None
