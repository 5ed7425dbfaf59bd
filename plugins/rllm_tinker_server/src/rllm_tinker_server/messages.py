"""What the two halves of the server say to each other: HTTP in front, torch behind. Plain data; no tinker, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray


class RequestRefused(Exception):  # noqa: N818  (a refusal, not a fault)
    """The client asked for something that is wrong or that this server does not do; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class LoraSpec:
    """The adapter of one LoRA model."""

    rank: int
    seed: int | None = None
    """Of the initial weights; None draws one."""
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """One datum of `forward_backward`: position i of `tokens` predicts row i of `targets`."""

    tokens: NDArray[np.int64]
    """(n,) what the model is given."""
    targets: NDArray[np.int64]
    """(n,) or (n, k): the tokens whose log-probs are asked for."""
    inputs: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """What the loss reads, by name (``weights``, ``logprobs``, ``advantages``, …), each of the shape of `targets`."""


@dataclass(frozen=True, kw_only=True)
class ForwardBackward:
    """Add the gradient of a loss, summed over examples, to that of a LoRA model; `forward_only` leaves it alone."""

    loss: str
    config: Mapping[str, float]
    examples: tuple[Example, ...]
    forward_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ForwardBackwardResult:
    logprobs: tuple[NDArray[np.float32], ...]
    """Of each example, of the shape of its targets."""
    metrics: Mapping[str, float]
    """``loss:sum``, the loss summed over all examples, and whatever else is worth showing."""


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
    """Of the first sequence; those of the others are derived from it. None draws one."""
    temperature: float
    top_k: int
    """-1: all tokens."""
    top_p: float
    stop_ids: frozenset[int] | None = None
    """Tokens that end a reply; None: the model's own."""
    stop_strings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    """One for every sequence, in which case `seed` does not count (see `rllm_tinker.seeds`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TopTokens:
    """The likeliest tokens at n positions, the likeliest first."""

    tokens: NDArray[np.int32]
    """(n, k)"""
    logprobs: NDArray[np.float32]
    """(n, k), NaN where a position has none: the first of a prompt."""

    def since(self, start: int) -> TopTokens:
        """Those of the positions from `start` on."""
        return TopTokens(tokens=self.tokens[start:], logprobs=self.logprobs[start:])


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What a model says about given tokens, each after those before it."""

    logprobs: NDArray[np.float32]
    """(n,), NaN for the first."""
    top: TopTokens | None
    """None: they were not asked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampled:
    """One sampled sequence."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """(n,) under softmax(logits / temperature)."""
    stop_reason: Literal["stop", "length"]
    top: TopTokens | None = None
    """Of every sampled token, under the same distribution; None: not asked for."""


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """What clients are told about the model that all LoRA models of a server share."""

    name: str
    """What clients call it."""
    tokenizer: str
    """What `transformers.AutoTokenizer` can load: a folder or a hub id."""
    max_context: int
    """Most tokens of a prompt and its reply, and of an example."""
    vocabulary: int
