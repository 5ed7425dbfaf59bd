"""The models that are sampled from: each a merged copy of some weights with an engine, and only so many at a time."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rllm_local.engine import LocalEngine
from rllm_tinker_server.fair_gate import FairGate
from rllm_tinker_server.lora import AdapterWeights


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
