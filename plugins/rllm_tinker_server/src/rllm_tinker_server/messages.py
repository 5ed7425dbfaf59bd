"""Messages between the server's two halves, HTTP and torch. They are plain data without tinker or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Dtype


class RequestError(Exception):
    """The client requested something invalid or unsupported. The message describes the remedy."""

    status = 400


STAND_IN = "stable_reinforce"
"""A loss whose formula is not public. With `--stand-in-losses` the server computes another formula for it."""
SAMPLED = "sampled"
"""Input of `STAND_IN` that the server makes from a datum's provenance: 1 for targets that were sampled, else 0."""


@dataclass(frozen=True, kw_only=True)
class LoraSpec:
    """The adapter of one LoRA model."""

    rank: int
    seed: int | None = None
    """Seed of the initial weights. None draws a seed."""
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """One datum of `forward_backward`: position i of `tokens` predicts row i of `targets`."""

    tokens: NDArray[np.int64]
    """(n,) what the model is given."""
    targets: NDArray[np.int64]
    """(n,) or (n, k): tokens whose log-probs the client requests."""
    inputs: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """Inputs of the loss by name (``weights``, ``logprobs``, ``advantages``, …), each with the shape of `targets`."""


@dataclass(frozen=True, kw_only=True)
class ForwardBackward:
    """Request to add the gradient of a loss, summed over examples, to a LoRA model's gradient.

    `forward_only` only computes the loss.
    """

    loss: str
    config: Mapping[str, float]
    examples: tuple[Example, ...]
    forward_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ForwardBackwardResult:
    logprobs: tuple[NDArray[np.float32], ...]
    """Log-probs of each example, with the shape of its targets."""
    metrics: Mapping[str, float]
    """``loss:sum``, the loss summed over all examples, and other metrics."""


@dataclass(frozen=True, kw_only=True)
class AdamStep:
    """One step of torch's AdamW. `grad_clip_norm` of 0 clips nothing."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """How to sample from a set of weights."""

    max_tokens: int
    seed: int | None
    """Seed of the first sequence. The seeds of the other sequences derive from it. None draws a seed."""
    temperature: float
    top_k: int
    """Number of likeliest tokens to sample from. -1 means all tokens."""
    top_p: float
    stop_ids: frozenset[int] | None = None
    """Tokens that end a response; None: the model's own."""
    stop_strings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    """The seed of each sequence. If it is not empty, `seed` is not used (see `rllm_serving.tinker_additions`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TopTokens:
    """The likeliest tokens at n positions, the likeliest first."""

    tokens: NDArray[np.int32]
    """(n, k)"""
    logprobs: NDArray[np.float32]
    """(n, k), NaN where a position has none: the first of a prompt."""

    def since(self, start: int) -> TopTokens:
        """Return the tokens of the positions from `start`."""
        return TopTokens(tokens=self.tokens[start:], logprobs=self.logprobs[start:])


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreSettings:
    """Predictions to return for n given tokens, besides their log-probs."""

    top: int = 0
    """Number of likeliest tokens of each position."""
    targets: NDArray[np.int64] | None = None
    """(n - 1, k) other tokens to score instead of the given tokens, from the second. -1 means none."""
    draws: int = 0
    """Number of tokens to draw, with replacement, for each position from the second."""
    draw_temperature: float = 1.0
    """Temperature of the draws. 0 draws the likeliest token."""
    seed: int = 0
    """Seed of the draws."""
    temperature: float = 1.0
    """Temperature of the distribution whose log-probs are returned. Above 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """A model's predictions for given tokens, each after the tokens before it."""

    logprobs: NDArray[np.float32]
    """(n,) log-probs. NaN for the first token."""
    top: TopTokens | None = None
    """Likeliest tokens of each position. None if the client did not request them."""
    targets: NDArray[np.float32] | None = None
    """(n - 1, k) log-probs of `ScoreSettings.targets`. 0 where there is none."""
    draws: TopTokens | None = None
    """(n - 1, k) drawn tokens."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledSequence:
    """One sampled sequence."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """(n,) under softmax(logits / temperature)."""
    stop_reason: Literal["stop", "length"]
    top: TopTokens | None = None
    """Likeliest tokens at every sampled token, under the same distribution. None if the client did not request them."""


@dataclass(frozen=True, kw_only=True)
class BaseModelInfo:
    """Description for clients of the base model that all LoRA models of a server share."""

    name: str
    """Name of the model for clients."""
    tokenizer: str
    """Directory or hub id that `transformers.AutoTokenizer` can load."""
    max_context: int
    """Maximum tokens of a prompt and its response, and of an example."""
    vocabulary: int
    layers: int
    dtype: Dtype
    """Type in which the base model computes."""
