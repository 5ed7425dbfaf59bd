"""The work on one request: a task that several clients may wait for, and the tokens that they are streamed."""

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
"""A choice of n tokens is read again after n / 32 more: all reading costs 32 times its length, and not its square."""


class Growing:
    """The choices of a streamed request while they are sampled. Several clients may wait for them."""

    def __init__(self, asked: Asked, renderer: StreamingRenderer) -> None:
        self.news = asyncio.Event()
        """Set when there are more tokens. Later ones set another event."""
        self.begun: Begun | None = None
        """None until the prompt is rendered."""
        self._asked = asked
        self._renderer = renderer
        self._prompt_ids: NDArray[np.int32]
        self._tokens: list[list[int]] = [[] for _ in range(asked.n)]

    def begin(self, begun: Begun, prompt_ids: NDArray[np.int32]) -> None:
        """Note the prompt. Tokens follow."""
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
        """The part of `choice_of` that is final."""
        asked = self._asked
        response = self._renderer.settled(self._prompt_ids, ids, asked.tools)
        if asked.raw_prompt is not None:
            return Settled(content=before_any(response.text, asked.stop))
        if response.reasoning:
            return Settled(reasoning=response.reasoning)
        # JSON of a schema may turn out as a call of a tool, which is no content.
        may_call = asked.wanted is not None and asked.tools
        return Settled(content="" if may_call else before_any(response.content, asked.stop))


@dataclass(eq=False)
class Work:
    """The sampling and storing of one request, and who waits for it."""

    task: asyncio.Task[Answer]
    waiters: int = 0
    storing: bool = False
    """Whether it is past the point where it can be cancelled."""
    delivered: bool = False
    growing: Growing | None = None
    """Its tokens so far; None: clients get everything at the end."""

    @property
    def answer(self) -> Answer | None:
        """None: it is under way, or came to nothing."""
        return self.task.result() if self.task.done() and not self.failed else None

    @property
    def failed(self) -> bool:
        """Whether it came to nothing."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    def result(self) -> Answer:
        """The answer of work that has ended. Raises RefusedError."""
        if self.task.cancelled():
            raise RefusedError(
                409, "conflict", "The session was closed while its model answered.", code="session_closed"
            )
        return self.task.result()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Count a client that waits. The last one that leaves cancels sampling; what is being stored is stored."""
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
        """Wait for the answer, for `within` seconds, or until `news` is set. Returns True if the answer is there.

        Raises:
            ClientGoneError: the client hung up before.
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
