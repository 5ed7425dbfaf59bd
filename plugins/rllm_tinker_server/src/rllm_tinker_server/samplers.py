"""Sampling from the base model and from adapters: a merged copy and a `LocalEngine` for each set of weights."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.weight_comparison import KnownFault
from rllm_core.errors import RolloutError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.seeding import derive_seed
from rllm_local.engine import LocalEngine
from rllm_local.request import Stops, stop_rule
from rllm_tinker_server.examples import check_ids
from rllm_tinker_server.fairness import FairGate
from rllm_tinker_server.host import Host
from rllm_tinker_server.lora import AdapterWeights
from rllm_tinker_server.messages import RequestError, SampledSequence, SampleSettings, Scores, ScoreSettings


@dataclass(eq=False)
class ModelSampler:
    """A model and what is sampling from it."""

    model: Any
    make_engine: Callable[[Any], LocalEngine]
    users: Counter[str] = field(default_factory=Counter)
    """Number of users of each client."""
    turn: int = 0
    """How many users may still enter while other weights wait for a place."""
    unwanted: bool = False
    """True if the model should be removed after its last use."""
    _engine: LocalEngine | None = None

    @property
    def is_used(self) -> bool:
        return self.users.total() > 0

    @property
    def engine(self) -> LocalEngine:
        """Engine of the model. It is made at its first use after `rest`, because its cache is large."""
        if self._engine is None:
            self._engine = self.make_engine(self.model)
        return self._engine

    def rest(self) -> None:
        """Free the engine and its cache."""
        self._engine = None


class MergedModels:
    """Merges on demand and lets go of the least recently used. Belongs to one event loop.

    Caches of keys and values exist for the models in use and for the one used last.
    """

    def __init__(
        self,
        merge: Callable[[AdapterWeights | None], Any],
        make_engine: Callable[[Any], LocalEngine],
        executor: Executor,
        *,
        limit: int,
        turn: int,
    ) -> None:
        """Start with only the base model.

        Args:
            merge: function that makes a model from weights, on the executor. For None it returns the base model, which
                costs nothing.
            make_engine: function that makes an engine for such a model.
            executor: executor with one thread.
            limit: maximum number of merged models, including models in use, without the base model. A client that uses
                none can have one above the limit, so that it does not wait for a long sequence of others.
            turn: maximum number of users of a model that enter before other weights that wait for its place.

        Raises:
            ValueError: the limit is below 1, so no weights could be merged.
        """
        if limit < 1:
            raise ValueError(f"a limit of {limit} merged models leaves no place for one")
        self._merge = merge
        self._make_engine = make_engine
        self._executor = executor
        self._limit = limit
        self._turn = turn
        self._base = ModelSampler(merge(None), make_engine)
        self._latest = self._base
        # In order of last use.
        self._merged: OrderedDict[AdapterWeights, ModelSampler] = OrderedDict()
        # Clients alternate, so that weights which wait for a place get it however busy the others are.
        self._entrance = FairGate(1)
        self._someone_left = asyncio.Event()

    @asynccontextmanager
    async def use(self, weights: AdapterWeights | None, client: str = "") -> AsyncIterator[ModelSampler]:
        """The sampler of some weights, which stays while it is used. Waits for a place where all are taken."""
        sampler = await self._enter(weights, client)
        try:
            yield sampler
        finally:
            self._leave(weights, sampler, client)

    def forget(self, weights: AdapterWeights) -> None:
        """Remove the model of these weights after its last use."""
        sampler = self._merged.get(weights)
        if sampler is not None:
            sampler.unwanted = True
            self._let_go(weights, sampler)

    async def _enter(self, weights: AdapterWeights | None, client: str) -> ModelSampler:
        if weights is None:
            sampler = self._base
        else:
            sampler = await self._find_place(weights, client)
            self._merged.move_to_end(weights)
        # No await since the sampler was found, so no other task can have removed it.
        sampler.users[client] += 1
        self._latest = sampler
        for other in self._others(sampler):
            if not other.is_used:
                other.rest()
        return sampler

    async def _find_place(self, weights: AdapterWeights, client: str) -> ModelSampler:
        sampler = self._merged.get(weights)
        if sampler is not None and (not self._entrance.is_full or sampler.turn):
            sampler.turn = max(0, sampler.turn - 1)
            return sampler
        async with self._entrance.enter(client):
            return self._merged.get(weights) or await self._admit(weights, client)

    async def _admit(self, weights: AdapterWeights, client: str) -> ModelSampler:
        for sampler in self._merged.values():
            sampler.turn = self._turn
        while len(self._merged) >= self._limit:
            idle = next((each for each, sampler in self._merged.items() if not sampler.is_used), None)
            if idle is not None:
                del self._merged[idle]
            elif len(self._merged) == self._limit and not any(each.users[client] for each in self._merged.values()):
                break
            else:
                self._someone_left.clear()
                await self._someone_left.wait()
        model = await asyncio.get_running_loop().run_in_executor(self._executor, self._merge, weights)
        self._merged[weights] = ModelSampler(model, self._make_engine)
        return self._merged[weights]

    def _leave(self, weights: AdapterWeights | None, sampler: ModelSampler, client: str) -> None:
        sampler.users[client] -= 1
        if sampler.is_used:
            return
        sampler.users.clear()
        if sampler is not self._latest:
            sampler.rest()
        if weights is not None:
            sampler.unwanted |= len(self._merged) > self._limit
            self._let_go(weights, sampler)
        self._someone_left.set()

    def _let_go(self, weights: AdapterWeights, sampler: ModelSampler) -> None:
        if sampler.unwanted and not sampler.is_used:
            self._merged.pop(weights, None)
            sampler.rest()

    def _others(self, sampler: ModelSampler) -> Iterator[ModelSampler]:
        return (each for each in (self._base, *self._merged.values()) if each is not sampler)


class Samplers:
    """Samplers of all sets of weights. They work on the executor and belong to one event loop."""

    def __init__(
        self, host: Host, executor: Executor, *, kv_cache_bytes: int, max_concurrency: int, max_merged: int
    ) -> None:
        """Start with no adapter merged.

        Args:
            host: of the base model.
            executor: of one thread. It may be another one than that which `host` trains on.
            kv_cache_bytes: for cached keys and values, of each set of weights that is being sampled from.
            max_concurrency: most sequences of one set of weights in a forward pass.
            max_merged: most sets of weights in memory, one copy of the adapted layers each.
        """
        self._host = host
        self._executor = executor
        self._names = (str(number) for number in itertools.count())
        self._sequences = FairGate(max_concurrency, spare=max_concurrency)
        self._scores = FairGate(1)
        renderer = TemplateRenderer(host.tokenizer, host.stop_ids)

        def make_engine(model: Any) -> LocalEngine:
            return LocalEngine(
                model,
                renderer,
                executor,
                max_context=host.base.max_context,
                max_concurrency=max_concurrency,
                kv_cache_bytes=kv_cache_bytes,
            )

        self.models = MergedModels(host.merge_weights, make_engine, executor, limit=max_merged, turn=max_concurrency)

    async def sample(
        self,
        weights: AdapterWeights | None,
        prompts: Sequence[NDArray[np.int32]],
        settings: SampleSettings,
        *,
        client: str = "",
    ) -> list[SampledSequence]:
        """Continue every prompt once; several samples of one are several times the same prompt.

        Every sequence is drawn with its own seed where there is one for each. Else sequence 0 is drawn with the seed
        of the settings, and each other one with a seed derived from it.

        Args:
            weights: None: the base model.
            prompts: (n,) tokens each, which fit into the context. `sample_request` checks that.
            settings: valid settings, see `check_settings`. Sampling stops at the end of the context.
            client: name of the client. Sequences of several clients are sampled alternately.

        Raises:
            RequestError: a prompt has tokens outside the vocabulary, or the weights are not finite.
            RolloutError: a forward pass failed.
        """
        for prompt in prompts:
            check_ids(prompt, self._host.base.vocabulary, "The prompt")
        stop_ids = self._host.stop_ids if settings.stop_ids is None else settings.stop_ids
        stops = stop_rule(self._text, stop_ids, settings.stop_strings)
        seed = secrets.randbits(63) if settings.seed is None else settings.seed
        calls = (
            self._sequence(weights, prompt, _params(settings, seed, index), stops, client)
            for index, prompt in enumerate(prompts)
        )
        # All of them end before an error is raised.
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [_check_result(result) for result in results]

    async def score(
        self,
        weights: AdapterWeights | None,
        given: NDArray[np.int32],
        settings: ScoreSettings | None = None,
        *,
        client: str = "",
    ) -> Scores:
        """Return the model's predictions for tokens, each after the tokens before it.

        Args:
            weights: adapter weights. None means the base model.
            given: (n,) tokens.
            settings: predictions to return. None means only the log-probs of the tokens.
            client: name of the client. Requests of several clients are computed alternately.

        Raises:
            RequestError: the request has tokens outside the vocabulary.
        """
        settings = settings or ScoreSettings()
        check_ids(given, self._host.base.vocabulary, "The prompt")
        if settings.targets is not None:
            check_ids(settings.targets[settings.targets != -1], self._host.base.vocabulary, "target_prompt_logprobs")
        async with self._scores.enter(client), self.models.use(weights, client) as sampler:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, self._host.score, sampler.model, given, settings
            )

    async def different_tensors(
        self, sent: AdapterWeights | None, trained: AdapterWeights, *, client: str = ""
    ) -> dict[str, str | None]:
        """Return the tensors of the model for `sent` that differ from the trained weights. See `lora`."""
        async with self._scores.enter(client), self.models.use(sent, client) as sampler:
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, self._host.different_tensors, sampler.model, sent, trained
            )

    async def score_suspects(
        self, trained: AdapterWeights, rows: Sequence[NDArray[np.int32]], *, client: str = ""
    ) -> dict[KnownFault, list[NDArray[np.float32]]]:
        """Return the log-probs of all tokens but each row's first, with each possible fault of the weights.

        Raises:
            RequestError: a row has tokens outside the vocabulary.
        """
        for row in rows:
            check_ids(row, self._host.base.vocabulary, "A row")
        async with self._scores.enter(client):
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, self._host.score_suspects, trained, rows
            )

    def forget(self, weights: AdapterWeights) -> None:
        """These weights will not be sampled from any more."""
        self.models.forget(weights)

    async def _sequence(
        self,
        weights: AdapterWeights | None,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        stops: Stops,
        client: str,
    ) -> SampledSequence:
        session = next(self._names)
        async with self._sequences.enter(client), self.models.use(weights, client) as sampler:
            engine = sampler.engine
            try:
                completion = await engine.generate(prompt, params, session=session, stops=stops, client=client)
            finally:
                await engine.end_session(session)
        return SampledSequence(
            tokens=completion.token_ids, logprobs=completion.logprobs, stop_reason=completion.finish_reason
        )

    def _text(self, tokens: list[int]) -> str:
        tokenizer = self._host.tokenizer
        return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _params(settings: SampleSettings, seed: int, index: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=_seed(settings, seed, index),
    )


def _seed(settings: SampleSettings, seed: int, index: int) -> int:
    if settings.seeds:
        return settings.seeds[index]
    return derive_seed(seed, "sequence", index) if index else seed


def _check_result(result: SampledSequence | BaseException) -> SampledSequence:
    if isinstance(result, RolloutError) and isinstance(result.__cause__, FloatingPointError):
        raise RequestError(
            "These weights make logits that are not finite: training has diverged. Sample from an earlier snapshot, "
            "and lower the learning rate."
        ) from result
    if isinstance(result, BaseException):
        raise result
    return result
