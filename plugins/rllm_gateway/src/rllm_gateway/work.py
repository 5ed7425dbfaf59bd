"""The work on one request: the task that answers it, and the tokens that are streamed to clients.

Several clients may wait for the same work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.renderer import StreamingRenderer
from rllm_core.rollout.template_renderer import before_any
from rllm_gateway.exchange import Answer, Asked, Begun, Settled
from rllm_gateway.http import ClientGoneError
from rllm_gateway.refusals import RefusedError

LOOKS = 32
"""A choice with n tokens is decoded again after n / 32 more tokens. So the total cost is linear in its length, about
32 times the length, not quadratic."""


class Growing:
    """The choices of a streamed request while they are sampled. Several clients may wait for them."""

    def __init__(self, asked: Asked, renderer: StreamingRenderer) -> None:
        self.news = asyncio.Event()
        """Event that is set when there are more tokens. It is then replaced by a new event."""
        self.begun: Begun | None = None
        """None until the prompt is rendered."""
        self._asked = asked
        self._renderer = renderer
        self._prompt_ids: NDArray[np.int32]
        self._tokens: list[list[int]] = [[] for _ in range(asked.n)]

    def begin(self, begun: Begun, prompt_ids: NDArray[np.int32]) -> None:
        """Store the prompt, before the first token is added."""
        self.begun, self._prompt_ids = begun, prompt_ids

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
        """Return the final part of the result of `choice_of`."""
        asked = self._asked
        response = self._renderer.parse_partial(self._prompt_ids, ids, asked.tools)
        if response.reasoning:
            return Settled(reasoning=response.reasoning)
        # JSON that follows a schema can become a tool call in the end, which is not content.
        may_call = asked.wanted is not None and asked.tools
        return Settled(content="" if may_call else before_any(response.content, asked.stop))


@dataclass(eq=False)
class Work:
    """The sampling and storing of one request, and the number of clients that wait for it."""

    task: asyncio.Task[Answer]
    waiters: int = 0
    storing: bool = False
    """True if its calls are being stored, so that it cannot be cancelled any more."""
    delivered: bool = False
    growing: Growing | None = None
    """The tokens so far. None if clients get the whole answer at the end."""

    @property
    def answer(self) -> Answer | None:
        """The answer. None if the work has not finished, or has failed."""
        return self.task.result() if self.task.done() and not self.failed else None

    @property
    def failed(self) -> bool:
        """True if the work has ended without an answer."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    def result(self) -> Answer:
        """Return the answer of finished work.

        Raises:
            RefusedError: the session was closed meanwhile, or the request was rejected.
        """
        if self.task.cancelled():
            raise RefusedError(
                409, "conflict", "The session was closed while its model answered.", code="session_closed"
            )
        return self.task.result()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Count a waiting client. If the last one leaves, cancel sampling, unless the calls are being stored."""
        self.waiters += 1
        try:
            yield
        finally:
            self.waiters -= 1
            if not self.waiters and not self.storing:
                self.task.cancel()

    async def wait(
        self, gone: asyncio.Task[None], within: float | None = None, news: asyncio.Event | None = None
    ) -> bool:
        """Wait for the answer, for `within` seconds, or until `news` is set. Return True if the answer is complete.

        Raises:
            ClientGoneError: the client disconnected before.
        """
        told = None if news is None else asyncio.create_task(news.wait())
        try:
            ends = {self.task, gone} if told is None else {self.task, gone, told}
            done, _ = await asyncio.wait(ends, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if told is not None:
                told.cancel()
        if gone in done and self.task not in done:
            raise ClientGoneError
        return self.task in done
