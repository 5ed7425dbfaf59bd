"""Rollout engines: token ids in, sampled token ids and their log-probs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.rollout.renderer import Renderer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample. `top_k` of -1 and `top_p` of 1 leave the distribution as it is; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    """Sampled tokens are a function of the weights, the prompt and this seed, whatever else is in the batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Completion:
    """What the model sampled after one prompt."""

    token_ids: NDArray[np.int32]
    """(n,) includes the stop token when `finish_reason` is ``stop``."""
    logprobs: NDArray[np.float32]
    """(n,) log-probs under softmax(logits / temperature), before top-p and top-k."""
    finish_reason: FinishReason
    weight_version: int
    """Number of the policy update whose weights sampled these tokens."""


class RolloutEngine(Protocol):
    """Serves many conversations at once."""

    @property
    def renderer(self) -> Renderer:
        """Turns messages into tokens and tokens into text, for this model."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and response together, that one conversation can hold."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        """Continue the prompt. Calls with the same `session` share their cached prefix.

        Raises `RolloutError` when the prompt leaves no room for a token in `max_context`.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Free what is cached for a conversation. Unknown names are fine."""
        ...
