"""The sampling engine: continuous batching over a Hugging Face model, with caches that persist between turns.

A common prefix of several prompts is computed once and copied, also for rollouts of one task that start together.

Requests join and leave between forward passes. A request's tokens depend only on the weights, its prompt and its seed,
not on the other requests in a pass (up to the rounding of floating-point sums).
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_backend_kit.grammars import Grammars
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.weight_comparison import Probe
from rllm_core.errors import BackendError, RolloutError
from rllm_core.rollout.prompts import checked_prompt
from rllm_local.exact_attention import whole_blocks
from rllm_local.forward import Row, buckets, cache_bytes_per_token, sample_next
from rllm_local.kv_cache import Copy, SlotCache, merge_copies
from rllm_local.request import Request, Stops, WaitingRequests, stop_rule
from rllm_local.sampling import Draws
from rllm_local.scoring import Scores, score_to_sample
from rllm_local.slots import BLOCK, Session, SlotTable, leading
from rllm_local.weights import digest_parameters

FIRST_POSITIONS = 64
"""Initial number of positions per slot. It doubles when a conversation needs more."""
MAX_TOKENS_PER_PASS = 8192
NAME = "the sampler"
"""Name of an engine that has no replicas."""
QUIET_TURNS = 3
"""A pass starts after this many event loop iterations without a new request."""


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
        grammars: Grammars | None = None,
    ) -> None:
        """`grammars` compiles `SamplingParams.json_schema`. Without it, the engine rejects requests with a schema."""
        self._grammars = grammars
        self.renderer = renderer
        self.max_context = max_context
        self.weight_version = 0
        self._model = model
        self._executor = executor
        self._max_concurrency = max_concurrency
        self._affordable_tokens = max(kv_cache_bytes // cache_bytes_per_token(model), max_context)
        self._waiting = WaitingRequests()
        self._running: list[Request] = []
        self._submitted = 0
        self._sync_count = 0
        self._gone: BackendError | None = None
        self._start_empty()
        self._loop_task: asyncio.Task[None] | None = None
        self._may_sample = asyncio.Event()
        self._may_sample.set()

    async def generate(
        self,
        prompt_ids: Sequence[int] | NDArray[np.int32],
        sampling: SamplingParams,
        *,
        session: str,
        stops: Stops | None = None,
        client: str = "",
    ) -> Completion:
        """Sample a completion; see `RolloutEngine.generate`.

        Without `stops`, a response ends with one of the renderer's stop ids or with a stop string. Clients share the
        slots: a request waits for earlier requests with the same client, and for one pass of others.
        """
        if self._gone is not None:
            raise self._gone
        if stops is None:
            stops = stop_rule(self.renderer.text, self.renderer.stop_ids, sampling.stop)
        constrains = sampling.json_schema is not None and self._grammars is not None
        schema = None if constrains else sampling.json_schema
        checked = replace(sampling, stop=(), json_schema=schema, top_logprobs=0)
        prompt, room = checked_prompt(prompt_ids, checked, self.max_context)
        vocabulary = self._model.get_input_embeddings().num_embeddings
        if prompt.min() < 0 or prompt.max() >= vocabulary:
            # An invalid token would make the pass fail for the other rows too.
            raise RolloutError(
                "unknown-token",
                f"The prompt has tokens from {prompt.min()} to {prompt.max()}. The model's are 0 to {vocabulary - 1}.",
                "Send token ids of this model's tokenizer.",
            )
        grammar = None
        if self._grammars is not None and sampling.json_schema is not None:
            # Large schemas take a while to compile. Other requests continue during that time.
            grammar = await asyncio.to_thread(self._grammars.of_schema, sampling.json_schema, prompt)
            if self._gone is not None:
                raise self._gone
        buffer = np.concatenate((prompt, np.zeros(room, np.int32)))
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        request = Request(buffer, len(prompt), sampling, session, future, stops, grammar, client)
        self._waiting.add(request)
        self._submitted += 1
        if self._loop_task is None or self._loop_task.done():
            self._loop_task = asyncio.create_task(self._serve(), name="rllm-local-engine")
        return await request.future

    async def end_session(self, session: str) -> None:
        """Free the conversation's slot when none of its requests is running.

        Until the slot is used again, other prompts can reuse its cached prefix.
        """
        self._table.release(session)

    async def score(self, probe: Probe) -> dict[str, Scores]:
        """Return the scores of a probe, see `ScoringEngine`. Requests continue before and after the pass."""
        loop = asyncio.get_running_loop()
        return {NAME: await loop.run_in_executor(self._executor, score_to_sample, self._model, probe)}

    async def digests(self, replica: str) -> dict[str, str]:
        """Return the digests of the model's parameters, see `digest_parameters`."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, digest_parameters, self._model)

    def pause(self) -> None:
        """Start no new pass until `sync_weights`, because the model's weights are about to change."""
        self._may_sample.clear()

    def sync_weights(self, version: int) -> None:
        """Clear the caches, because the model's weights have changed. Running requests continue with new weights."""
        self.weight_version = version
        self._sync_count += 1
        self._table.clear()
        self._may_sample.set()

    def fail(self, error: BackendError) -> None:
        """Raise the error in all waiting requests, and in all later requests."""
        self._gone = error
        for request in (*self._running, *self._waiting):
            if not request.future.done():
                request.future.set_exception(error)

    def _start_empty(self) -> None:
        positions = whole_blocks(min(FIRST_POSITIONS, self.max_context))
        layers, slots = self._model.config.get_text_config().num_hidden_layers, self._slots_for(positions)
        self._cache = SlotCache(layers, slots, positions)
        self._table = SlotTable(self._cache.slots)
        self._copies: list[Copy] = []
        """Copies between slots that the next pass makes before it computes."""

    async def _serve(self) -> None:
        """Serve requests until none is left."""
        try:
            while self._waiting or self._running:
                await self._may_sample.wait()
                await self._settle()
                self._admit()
                if self._running:
                    await self._pass()
        except Exception as error:  # noqa: BLE001  (the waiting requests must receive the error)
            self._fail(error)

    async def _settle(self) -> None:
        """Let other coroutines run until no new requests arrive, so that batches are full and reproducible."""
        quiet = 0
        while quiet < QUIET_TURNS:
            seen = self._submitted
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._submitted == seen else 0

    def _admit(self) -> None:
        held: list[Request] = []
        running = self._count_by_client()
        self._displace(running)
        coming: set[int] = set()
        """Blocks that the next pass computes for the requests that start now."""
        while self._waiting and len(self._running) < self._max_concurrency:
            request = self._waiting.take(running)
            if request.future.done():
                continue
            source, cached = self._longest_beginning(request)
            if request.keys and leading(request.keys, coming) * BLOCK >= cached + BLOCK:
                # A sibling request computes the same blocks in the next pass. After that they can be copied.
                held.append(request)
                continue
            session = self._table.acquire(request.session_name)
            if session is None:
                held.append(request)
                break
            if session.busy:
                # Requests of one conversation run one after the other. Other requests do not wait for them.
                held.append(request)
                continue
            self._begin(request, session, source, cached)
            running[request.client] += 1
            coming.update(request.keys)
        self._waiting.put_back(held)
        longest = max((len(request.tokens) for request in self._running), default=0)
        if longest > self._cache.positions:
            self._make_room(longest)

    def _count_by_client(self) -> Counter[str]:
        return Counter(request.client for request in self._running)

    def _displace(self, running: Counter[str]) -> None:
        """Give clients without a slot the slots of the busiest client. Its newest requests continue later."""
        free = min(self._max_concurrency, self._cache.slots) - len(self._running)
        for _ in self._waiting.without_slot(running)[max(0, free) :]:
            if max(running.values(), default=0) < 2:
                return
            client = running.most_common(1)[0][0]
            newest = next(request for request in reversed(self._running) if request.client == client)
            self._running.remove(newest)
            self._table.leave(newest.session_name)
            self._waiting.put_back([newest])
            running[client] -= 1

    def _longest_beginning(self, request: Request) -> tuple[Session | None, int]:
        """Return the session whose slot contains the longest prefix of the request, and the prefix's usable length."""
        tokens, own = request.tokens, self._table.get(request.session_name)
        reusable = 0 if own is None else own.reusable(tokens)
        if len(tokens) < reusable + BLOCK:
            return own, reusable
        source, cached = self._table.prefixes.longest(tokens, request.block_keys())
        # Copying a few more tokens costs more than computing them.
        return (source, cached) if cached >= reusable + BLOCK else (own, reusable)

    def _begin(self, request: Request, session: Session, source: Session | None, cached: int) -> None:
        """Add a request to the next passes. Its first `cached` tokens come from the cache of `source`."""
        session.busy = True
        if source is not None and source.slot != session.slot:
            self._copies.append(Copy(source.slot, [session.slot], cached))
        if session.keys:
            self._table.prefixes.forget(session, keep=session.reusable(request.tokens))
        session.tokens = request.tokens[:cached]
        if source is not None and source.slot == session.slot:
            # The cached tokens stay in the same slot but now belong to a different conversation. File them again so
            # that sibling requests still find them.
            self._table.prefixes.file(session)
        request.session = session
        self._running.append(request)

    def _make_room(self, needed: int) -> None:
        """Give each slot more positions. If memory then allows fewer slots, the requests of removed slots wait."""
        positions = self._cache.positions
        while positions < needed:
            positions = whole_blocks(min(2 * positions, self.max_context))
        slots = self._slots_for(positions)
        # Make the copies now, because the resize can remove their source slots.
        self._cache.copy(self._copies)
        self._copies.clear()
        self._cache.grow(slots, positions)
        lost = set(self._table.resize(slots))
        evicted = [request for request in self._running if request.session_name in lost]
        self._running = [request for request in self._running if request.session_name not in lost]
        self._waiting.put_back(evicted)

    def _slots_for(self, positions: int) -> int:
        return max(1, min(self._max_concurrency, self._affordable_tokens // positions))

    async def _pass(self) -> None:
        requests, sync_count = self._running, self._sync_count
        rows = [self._row(request) for request in requests]
        loop = asyncio.get_running_loop()
        try:
            if self._copies:
                await loop.run_in_executor(self._executor, self._cache.copy, merge_copies(self._copies))
                self._copies.clear()
            for number, part in enumerate(buckets(rows, MAX_TOKENS_PER_PASS)):
                if not self._may_sample.is_set() or sync_count != self._sync_count:
                    break  # the remaining rows are computed again with the new weights
                if number and self._waiting.without_slot(self._count_by_client()):
                    break  # the remaining rows are computed in the next pass, after the rows of the new client
                chosen, version = [rows[index] for index in part], self.weight_version
                draws = await loop.run_in_executor(self._executor, sample_next, self._model, self._cache, chosen)
                self._deliver([requests[index] for index in part], draws, version)
        finally:
            # This also runs if the event loop stops in the middle of a pass.
            self._retire(requests)
            if self._copies:
                # The pass ended before the copies were made, so the slots contain fewer tokens than their sessions
                # record.
                self._copies.clear()
                self._table.clear()
        if sync_count != self._sync_count:
            # Weights were synced during the pass, so its cache entries come from the old weights.
            self._table.clear()

    def _retire(self, requests: list[Request]) -> None:
        """Remove requests that are finished or whose caller has stopped waiting (a timeout)."""
        self._running = [request for request in requests if not request.future.done()]
        for request in requests:
            if request.future.done():
                self._table.leave(request.session_name)

    def _row(self, request: Request) -> Row:
        assert request.session is not None
        cached = len(request.session.tokens)
        return Row(
            request.session.slot,
            cached,
            request.tokens[cached:],
            request.sampling,
            len(request.logprobs),
            request.grammar,
        )

    def _deliver(self, requests: list[Request], draws: Draws, version: int) -> None:
        drawn = zip(requests, draws.tokens.tolist(), draws.logprobs.tolist(), strict=True)
        for row, (request, token, logprob) in enumerate(drawn):
            if draws.top_ids is not None and draws.top_logprobs is not None:
                request.note_top(draws.top_ids[row], draws.top_logprobs[row])
            try:
                self._take(request, token, logprob, version)
            except Exception as error:  # noqa: BLE001  (only this request fails; the others continue)
                request.fail(error, "Sampling stopped")

    def _take(self, request: Request, token: int, logprob: float, version: int) -> None:
        """Add a token to a request. `version` is the weight version that sampled it.

        Raises:
            RuntimeError: the request's grammar allowed no token.
            FloatingPointError: the logits are NaN, for example after an update that diverged.
        """
        if not math.isfinite(logprob):
            raise FloatingPointError("the model's logits are not finite")
        if request.grammar is not None:
            request.grammar.take(token)
        session = request.session
        assert session is not None
        session.tokens = request.tokens
        self._table.prefixes.file(session)
        request.append(token, logprob, version)
        if request.stops(request.sampled_ids):
            request.finish("stop")
        elif len(request.tokens) == len(request.buffer):
            request.finish("length")

    def _fail(self, error: Exception) -> None:
        for request in (*self._running, *self._waiting):
            request.fail(error, "The sampling engine stopped")
        self._running, self._waiting = [], WaitingRequests()
        self._start_empty()
