"""The sampling engine: continuous batching over a Hugging Face model, with caches that persist between turns.

A common prefix of several prompts is computed once and stored once, also for rollouts of one task that start together.

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
from rllm_local.exact_attention import BLOCK
from rllm_local.forward import Row, buckets, cache_bytes_per_token, sample_next
from rllm_local.kv_cache import PageCache
from rllm_local.pages import KEY_TOKENS, PageTable, Prefix, leading, page_count
from rllm_local.request import Request, Stops, WaitingRequests, stop_rule
from rllm_local.sampling import Draws
from rllm_local.scoring import Scores, score_to_sample
from rllm_local.weights import digest_parameters

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
        self._last_token: int = model.get_input_embeddings().num_embeddings - 1
        largest = page_count(max_context)
        affordable = min(kv_cache_bytes // (BLOCK * cache_bytes_per_token(model)), max_concurrency * largest)
        # A copied page can need one more page.
        self._page_limit = max(affordable, largest + 1)
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
        engine: a request waits for earlier requests with the same client, and for one pass of others.
        """
        if self._gone is not None:
            raise self._gone
        if stops is None:
            stops = stop_rule(self.renderer.text, self.renderer.stop_ids, sampling.stop)
        prompt, room = checked_prompt(prompt_ids, self._left_to_check(sampling), self.max_context)
        # Negative numbers are the largest without a sign.
        if prompt.view(np.uint32).max() > self._last_token:
            # An invalid token would make the pass fail for the other rows too.
            raise RolloutError(
                "unknown-token",
                f"The prompt has tokens from {prompt.min()} to {prompt.max()}. The model has 0 to {self._last_token}.",
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

    def _left_to_check(self, sampling: SamplingParams) -> SamplingParams:
        """Return `sampling` without the parameters that this engine supports."""
        schema = None if self._grammars is not None else sampling.json_schema
        if not sampling.stop and not sampling.top_logprobs and sampling.json_schema is schema:
            return sampling
        return replace(sampling, stop=(), json_schema=schema, top_logprobs=0)

    async def end_session(self, session: str) -> None:
        """Forget the conversation when none of its requests is running.

        Until its pages are evicted, other prompts can use its cached prefix.
        """
        self._table.end(session)

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
        self._cache = PageCache(self._model.config, self._page_limit)
        self._table = PageTable(self._page_limit)

    async def _serve(self) -> None:
        """Serve requests until none is left."""
        try:
            while self._waiting or self._running:
                await self._may_sample.wait()
                await self._settle()
                self._admit()
                self._reserve_pages()
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
        coming: set[int] = set()
        """Keys of the prefixes that the next pass computes for the requests that start now."""
        suspended: list[Request] = []
        while self._waiting:
            request = self._waiting.take(running)
            if request.future.done():
                continue
            if self._table.is_busy(request.session_name):
                # Requests of one conversation run one after the other. Other requests do not wait for them.
                held.append(request)
                continue
            prefix = self._table.longest(request.session_name, request.tokens, request.prefix_keys)
            if request.keys and leading(request.keys, coming) * KEY_TOKENS >= prefix.length + KEY_TOKENS:
                # A sibling request computes the same prefix in the next pass. After that it can be shared.
                held.append(request)
                continue
            while not self._has_room(request, prefix) and (other := self._find_displaceable(request, running)):
                self._suspend(other)
                suspended.append(other)
                running[other.client] -= 1
            if not self._has_room(request, prefix):
                held.append(request)
                break
            request.session = self._table.begin(request.session_name, prefix)
            self._running.append(request)
            running[request.client] += 1
            coming.update(request.keys)
        self._waiting.put_back(held)
        self._waiting.put_back(suspended)

    def _count_by_client(self) -> Counter[str]:
        return Counter(request.client for request in self._running)

    def _has_room(self, request: Request, prefix: Prefix) -> bool:
        return len(self._running) < self._max_concurrency and self._table.fits(prefix, len(request.tokens))

    def _find_displaceable(self, request: Request, running: Counter[str]) -> Request | None:
        """Return the busiest client's newest request, if the client of `request` has none that runs."""
        if running[request.client] or max(running.values(), default=0) < 2:
            return None
        busiest = running.most_common(1)[0][0]
        return next(other for other in reversed(self._running) if other.client == busiest)

    def _suspend(self, request: Request) -> None:
        """Stop a running request. It continues later, and computes only the tokens whose pages were evicted."""
        self._running.remove(request)
        self._table.leave(request.session_name)

    def _reserve_pages(self) -> None:
        """Give each running request pages for its tokens. If too few are available, the newest requests wait."""
        count = 0
        while count < len(self._running):
            request = self._running[count]
            assert request.session is not None
            if self._table.extend(request.session, len(request.tokens)):
                count += 1
            else:
                newest = self._running[-1]
                self._suspend(newest)
                self._waiting.put_back([newest])

    async def _pass(self) -> None:
        requests, sync_count = self._running, self._sync_count
        rows = [_row(request) for request in requests]
        loop = asyncio.get_running_loop()
        try:
            for number, part in enumerate(buckets(rows, MAX_TOKENS_PER_PASS)):
                if not self._may_sample.is_set() or sync_count != self._sync_count:
                    break  # the remaining rows are computed again with the new weights
                if number and self._waiting.without_running(self._count_by_client()):
                    break  # the remaining rows are computed in the next pass, after the rows of the new client
                chosen, version = [rows[index] for index in part], self.weight_version
                draws = await loop.run_in_executor(self._executor, sample_next, self._model, self._cache, chosen)
                self._deliver([requests[index] for index in part], draws, version)
        finally:
            # This also runs if the event loop stops in the middle of a pass.
            self._retire(requests)

    def _retire(self, requests: list[Request]) -> None:
        """Remove requests that are finished or whose caller has stopped waiting (a timeout)."""
        self._running = [request for request in requests if not request.future.done()]
        for request in requests:
            if request.future.done():
                self._table.leave(request.session_name)

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
        self._table.store(session, request.tokens, request.prefix_keys)
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


def _row(request: Request) -> Row:
    session, tokens = request.session, request.tokens
    assert session is not None
    # The last token is computed also if it is cached, because the next token is drawn from its logits.
    cached = min(session.stored, len(tokens) - 1)
    return Row(
        [page.number for page in session.pages],
        cached,
        tokens[cached:],
        request.sampling,
        len(request.logprobs),
        request.grammar,
        session.stored,
        session.source.number if session.source is not None else 0,
    )
