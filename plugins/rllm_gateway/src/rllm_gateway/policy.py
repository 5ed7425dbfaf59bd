"""What the gateway samples from: the trainer, on the other side of a link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.contracts.engine import Completion, OnTokens
    from rllm_core.contracts.renderer import Renderer


Failure = Literal["too_long", "unsupported", "gone", "error"]
"""Why a call cannot be answered: no room for a token, an option that the engine lacks, no trainer, anything else."""


class PolicyError(Exception):
    """The policy cannot answer a call. The session continues."""

    def __init__(self, message: str, failure: Failure = "error") -> None:
        super().__init__(message)
        self.failure: Failure = failure


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
            PolicyError: it cannot be answered.
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
