"""Requests to the process that runs vLLM, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rllm_backend_kit.grammars import Grammars
from rllm_core.data.version_spans import VersionSpan

SCHEMA = "rllm_json_schema"
"""Key of the JSON schema in ``SamplingParams.extra_args``."""


@dataclass(frozen=True)
class Marks:
    """Token ids that end responses, and token ids that start and end reasoning."""

    stop_ids: tuple[int, ...]
    reasoning_ids: tuple[int, int] | None

    def load_grammars(self, model_config: Any) -> Grammars:
        """Return the grammars of vLLM's model with this ``ModelConfig``, from the tokenizer in its directory."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_config.tokenizer)
        return Grammars(tokenizer, model_config.get_vocab_size(), self)


@dataclass(frozen=True)
class Start:
    """Request to start the engine. The answer is `StartResponse`."""

    arguments: Mapping[str, Any]
    """Arguments of vLLM's ``AsyncEngineArgs``."""
    marks: Marks


@dataclass(frozen=True)
class StartResponse:
    max_context: int


@dataclass(frozen=True)
class Generate:
    """Request to sample one response. The answer is `GenerateResponse`."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_ids: tuple[int, ...]
    json_schema: str | None = None
    """See `SamplingParams.json_schema`."""


@dataclass(frozen=True)
class GenerateResponse:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]
    version_spans: tuple[VersionSpan, ...]
    """Version spans that cover all tokens, in order."""


@dataclass(frozen=True)
class LoadWeights:
    """Request to load all weights from the safetensors files in a directory and clear the cache. The answer is None."""

    directory: str
    version: int
    """Weight version that `GenerateResponse` reports for the tokens of these weights."""


@dataclass(frozen=True)
class Score:
    """Request for the log-probs of all tokens of some rows but the first. The answer is `ScoreResponse`."""

    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ScoreResponse:
    replicas: tuple[tuple[tuple[float, ...], ...], ...]
    """The log-probs by replica and row, at temperature 1."""


@dataclass(frozen=True)
class Digests:
    """Request for the digests of the first replica's tensors, a mapping. See `ScoringEngine.digests`."""


@dataclass(frozen=True)
class FailureResponse:
    """The answer to a failed request."""

    what: str
    """Type and message of the exception."""


@dataclass(frozen=True)
class UnsupportedResponse:
    """The answer to a request that vLLM does not support, with the fields of an `UnsupportedSamplingError`."""

    code: str
    message: str
    hint: str


Body = Start | Generate | LoadWeights | Score | Digests
Answer = (
    StartResponse | GenerateResponse | ScoreResponse | Mapping[str, str] | UnsupportedResponse | FailureResponse | None
)
