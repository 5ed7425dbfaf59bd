"""The choices of a streamed request while they are sampled, and the text of them that is final."""

from __future__ import annotations

import asyncio

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.renderer import StreamingRenderer
from rllm_core.rollout.template_renderer import before_any
from rllm_gateway.answer import Begun
from rllm_gateway.asked import Asked
from rllm_gateway.prompting import Prompt
from rllm_gateway.told import Settled

LOOKS = 32
"""A choice of n tokens is read again after n / 32 more: all reading costs 32 times its length, and not its square."""


class Growing:
    """The tokens of each choice so far. Several clients may wait for them."""

    def __init__(self, asked: Asked, renderer: StreamingRenderer) -> None:
        self.news = asyncio.Event()
        """Set when there are more tokens. Later ones set another event."""
        self.begun: Begun | None = None
        """None until the prompt is rendered."""
        self._asked = asked
        self._renderer = renderer
        self._prompt: Prompt
        self._tokens: list[list[int]] = [[] for _ in range(asked.n)]

    def begin(self, begun: Begun, prompt: Prompt) -> None:
        """Note the prompt. Tokens follow."""
        self.begun, self._prompt = begun, prompt

    def add(self, index: int, ids: NDArray[np.int32]) -> None:
        """Add the next tokens of a choice, (n,) int32."""
        self._tokens[index] += ids.tolist()
        told, self.news = self.news, asyncio.Event()
        told.set()

    def settled(self, looked: dict[int, int]) -> dict[int, Settled]:
        """Return the final text of each choice that has grown, by index.

        Args:
            looked: number of tokens of each choice that the caller has seen. It is brought up to date.
        """
        found = dict[int, Settled]()
        for index, tokens in enumerate(self._tokens):
            seen = looked.get(index, 0)
            if len(tokens) > seen + seen // LOOKS:
                looked[index] = len(tokens)
                found[index] = self._settled(np.array(tokens, np.int32))
        return found

    def _settled(self, ids: NDArray[np.int32]) -> Settled:
        """The part of `choice_of` that is final."""
        asked = self._asked
        reply = self._renderer.settled(self._prompt.ids, ids, asked.tools)
        if asked.raw_prompt is not None:
            return Settled(content=before_any(reply.text, asked.stop))
        if reply.reasoning:
            return Settled(reasoning=reply.reasoning)
        # JSON of a schema may turn out as a call of a tool, which is no content.
        may_call = asked.wanted is not None and asked.tools
        return Settled(content="" if may_call else before_any(reply.content, asked.stop))
