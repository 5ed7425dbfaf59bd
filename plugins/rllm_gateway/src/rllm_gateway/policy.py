"""What the gateway samples from: the trainer, on the other side of a link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.contracts.engine import Completion, OnTokens
    from rllm_core.contracts.renderer import Renderer


class PolicyError(Exception):
    """The policy cannot answer a call; the text says why. The session goes on."""


class PromptTooLongError(PolicyError):
    """The prompt leaves no room for a token."""


class UnsupportedError(PolicyError):
    """What samples cannot do one thing that the call asks for beyond tokens and their log-probs."""


class PolicyGoneError(PolicyError):
    """The policy went away before it answered."""


class Policy(Protocol):
    """Samples replies. Cancelling `sample` cancels the call."""

    async def sample(
        self,
        *,
        session: str,
        call: str,
        branch: str,
        prompt_ids: NDArray[np.int32],
        max_tokens: int,
        stop: tuple[str, ...],
        json_schema: str | None = None,
        top_logprobs: int = 0,
        on_tokens: OnTokens | None = None,
    ) -> Completion:
        """Continue a prompt.

        Args:
            session: `SessionSpec.id`.
            call: of this reply alone; the trainer keeps what it sampled under it until the session closes.
            branch: the same for calls of which each continues the one before; they share a cached prefix.
            prompt_ids: (n,) int32.
            max_tokens: most tokens of the reply.
            stop: texts that end it, at most a few; the tokens that complete one are its last.
            json_schema: JSON schema, as JSON text, of a reply that must be JSON.
            top_logprobs: how many of the likeliest tokens to name at each place.
            on_tokens: see `SamplingParams.on_tokens`.

        Raises:
            PromptTooLongError: there is no room for a token.
            UnsupportedError: `json_schema` or `top_logprobs` cannot be done.
            PolicyGoneError: nobody is there to sample any more.
            PolicyError: anything else that is wrong with this call.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class AttachedPolicy:
    """A policy that answers calls, and the renderer of its model."""

    policy: Policy
    renderer: Renderer
    model: str
    """Name of the model, for clients that ask which there are."""
    tokenizer: str | None = None
    """Digest of its vocabulary, stored with every session; None: nobody knows it."""
