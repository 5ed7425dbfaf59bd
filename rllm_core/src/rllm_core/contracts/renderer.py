"""Renderers: messages to tokens and tokens to text, for one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rllm_core.data.messages import Message


class Renderer(Protocol):
    """Results depend on the arguments only. What the model sampled is never tokenised again."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a reply."""
        ...

    @property
    def reasoning_ids(self) -> tuple[int, int] | None:
        """The tokens before and after a model's thoughts; None when this model has no token of its own for each."""
        ...

    def prompt(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        """(n,) int32 tokens of a conversation that starts with `messages`, up to where the model's reply begins."""
        ...

    def continuation(self, last_token: int, messages: Sequence[Message]) -> NDArray[np.int32]:
        """(n,) int32 tokens between a sampled reply and the next one: the end of the model's turn, then `messages`.

        `last_token` is the last token the model sampled; a stop token that the template would write is not repeated.
        """
        ...

    def reply_ids(self, text: str) -> NDArray[np.int32]:
        """(n,) int32 tokens of a reply that is known as text alone, with the stop token that ends it.

        What was sampled may be other tokens of the same text: hand on the sampled ones where there are any.
        """
        ...

    def text(self, token_ids: Sequence[int] | NDArray[np.int32]) -> str:
        """The words of a reply, without special tokens."""
        ...
