"""The sampling engine: continuous batching over a Hugging Face model, caches kept across the turns of a conversation.

Requests join and leave between forward passes. Whatever shares a pass, a request's tokens depend on the weights, its
prompt and its seed only (up to the rounding of floating-point sums).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import Completion, FinishReason, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.errors import RolloutError
from rllm_core.rollout.prompts import checked_prompt
from rllm_local.forward import Row, buckets, cache_bytes_per_token, sample_next
from rllm_local.kv_cache import SlotCache
from rllm_local.sampling import Draws
from rllm_local.slots import Session, SlotTable
from rllm_local.stop_rules import Stops, stop_rule

FIRST_POSITIONS = 64
"""Room per slot at first; doubled whenever a conversation outgrows it."""
MAX_TOKENS_PER_PASS = 8192
QUIET_TURNS = 3
"""Turns of the event loop without a new request after which a pass starts."""


@dataclass(eq=False)
class _Request:
    buffer: NDArray[np.int32]
    """The prompt, what was sampled, and room for what may still be."""
    prompt_length: int
    sampling: SamplingParams
    session_name: str
    future: asyncio.Future[Completion]
    stops: Stops
    session: Session | None = None
    weight_version: int = 0
    """Oldest weights that sampled a token of it."""
    logprobs: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Prompt and sampled tokens so far. A view."""
        return self.buffer[: self.prompt_length + len(self.logprobs)]

    @property
    def sampled(self) -> NDArray[np.int32]:
        """Sampled tokens so far. A view."""
        return self.tokens[self.prompt_length :]

    def append(self, token: int, logprob: float) -> None:
        self.buffer[self.prompt_length + len(self.logprobs)] = token
        self.logprobs.append(logprob)


class LocalEngine:
    """A `RolloutEngine` in this process. Forward passes run on the given executor, one at a time."""

    def __init__(
        self,
        model: Any,
        renderer: Renderer,
        executor: Executor,
        *,
        max_context: int,
        max_concurrency: int,
        kv_cache_bytes: int,
    ) -> None:
        self.renderer = renderer
        self.max_context = max_context
        self.weight_version = 0
        self._model = model
        self._executor = executor
        self._max_concurrency = max_concurrency
        self._affordable_tokens = max(kv_cache_bytes // cache_bytes_per_token(model), max_context)
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._submitted = 0
        self._published = 0
        self._start_empty()
        self._loop_task: asyncio.Task[None] | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int] | NDArray[np.int32],
        sampling: SamplingParams,
        *,
        session: str,
        stops: Stops | None = None,
    ) -> Completion:
        """See `RolloutEngine.generate`. Without `stops`, a reply ends with a stop id of the renderer or a stop text."""
        if stops is None:
            stops = stop_rule(self.renderer.text, self.renderer.stop_ids, sampling.stop)
        checked = replace(sampling, stop=()) if sampling.stop else sampling
        prompt, room = checked_prompt(prompt_ids, checked, self.max_context)
        buffer = np.concatenate((prompt, np.zeros(room, np.int32)))
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = _Request(buffer, len(prompt), sampling, session, future, stops)
        self._waiting.append(request)
        self._submitted += 1
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._serve(), name="rllm-local-engine")
        return await request.future

    async def end_session(self, session: str) -> None:
        """Free the conversation's slot, once no request of it is being served."""
        self._table.release(session)

    def publish(self, version: int) -> None:
        """The model's weights have changed: nothing cached is valid any more."""
        self.weight_version = version
        self._published += 1
        self._table.clear()

    def _start_empty(self) -> None:
        positions = min(FIRST_POSITIONS, self.max_context)
        self._cache = SlotCache(self._model.config.num_hidden_layers, self._slots_for(positions), positions)
        self._table = SlotTable(self._cache.slots)

    async def _serve(self) -> None:
        """Serve until nothing is left to do."""
        try:
            while self._waiting or self._running:
                await self._settle()
                self._admit()
                if self._running:
                    await self._pass()
        except Exception as error:  # noqa: BLE001  (whoever waits for an answer must learn that none will come)
            self._fail(error)

    async def _settle(self) -> None:
        """Let other coroutines run until none submits any more: full batches, and the same ones every time."""
        quiet = 0
        while quiet < QUIET_TURNS:
            seen = self._submitted
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._submitted == seen else 0

    def _admit(self) -> None:
        held: list[_Request] = []
        while self._waiting and len(self._running) < self._max_concurrency:
            request = self._waiting.popleft()
            if request.future.done():
                continue
            session = self._table.acquire(request.session_name)
            if session is None:
                held.append(request)
                break
            if session.busy:
                # Requests of one conversation take turns; others need not wait for that.
                held.append(request)
                continue
            self._begin(request, session)
        self._waiting.extendleft(reversed(held))
        longest = max((len(request.tokens) for request in self._running), default=0)
        if longest > self._cache.positions:
            self._make_room(longest)

    def _begin(self, request: _Request, session: Session) -> None:
        session.busy = True
        session.tokens = request.tokens[: session.reusable(request.tokens)]
        request.session = session
        if not request.logprobs:
            request.weight_version = self.weight_version
        self._running.append(request)

    def _make_room(self, needed: int) -> None:
        """Give every slot more positions. When memory allows fewer slots then, their requests wait for their turn."""
        positions = self._cache.positions
        while positions < needed:
            positions = min(2 * positions, self.max_context)
        slots = self._slots_for(positions)
        self._cache.grow(slots, positions)
        lost = set(self._table.resize(slots))
        evicted = [request for request in self._running if request.session_name in lost]
        self._running = [request for request in self._running if request.session_name not in lost]
        self._waiting.extendleft(reversed(evicted))

    def _slots_for(self, positions: int) -> int:
        return max(1, min(self._max_concurrency, self._affordable_tokens // positions))

    async def _pass(self) -> None:
        requests, published = self._running, self._published
        rows = [self._row(request) for request in requests]
        loop = asyncio.get_running_loop()
        try:
            for part in buckets(rows, MAX_TOKENS_PER_PASS):
                chosen = [rows[index] for index in part]
                draws = await loop.run_in_executor(self._executor, sample_next, self._model, self._cache, chosen)
                self._deliver([requests[index] for index in part], draws)
        finally:
            # Also when the event loop ends in the middle of a pass.
            self._retire(requests)
        if published != self._published:
            # Weights were published meanwhile: what this pass has cached is of the old ones.
            self._table.clear()

    def _retire(self, requests: list[_Request]) -> None:
        """Let go of requests that were answered, and of those whose asker has gone (a timeout)."""
        self._running = [request for request in requests if not request.future.done()]
        for request in requests:
            if request.future.done():
                self._table.leave(request.session_name)

    def _row(self, request: _Request) -> Row:
        assert request.session is not None
        cached = len(request.session.tokens)
        return Row(request.session.slot, cached, request.tokens[cached:], request.sampling, len(request.logprobs))

    def _deliver(self, requests: list[_Request], draws: Draws) -> None:
        for request, token, logprob in zip(requests, draws.tokens.tolist(), draws.logprobs.tolist(), strict=True):
            session = request.session
            assert session is not None
            session.tokens = request.tokens
            request.append(token, logprob)
            if request.stops(request.sampled):
                self._finish(request, "stop")
            elif len(request.tokens) == len(request.buffer):
                self._finish(request, "length")

    def _finish(self, request: _Request, reason: FinishReason) -> None:
        if request.future.done():
            return
        request.future.set_result(
            Completion(
                token_ids=request.sampled.copy(),
                logprobs=np.array(request.logprobs, np.float32),
                finish_reason=reason,
                weight_version=request.weight_version,
            )
        )

    def _fail(self, error: Exception) -> None:
        for request in (*self._running, *self._waiting):
            if not request.future.done():
                failure = RolloutError(f"The sampling engine stopped: {type(error).__name__}: {error}")
                failure.__cause__ = error
                request.future.set_exception(failure)
        self._running, self._waiting = [], deque()
        self._start_empty()
