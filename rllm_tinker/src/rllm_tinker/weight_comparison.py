"""Comparison of the sampling client's weights with the trained weights on a Tinker service."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.weight_comparison import KnownFault, Probe, TensorDifference, WeightComparison
from rllm_serving.tinker_additions import API, SUSPECTS_ROUTE, TENSORS_ROUTE
from rllm_tinker.client import Sampler, Trainer
from rllm_tinker.engine import TinkerEngine
from rllm_tinker.exchange import Datum
from rllm_tinker.health import ServedModel
from rllm_tinker.waiting import Waiting

Scores = NDArray[np.float32]
NAME = "the sampler"
UNKNOWN_LAYERS = 128
"""Number of layers for the limit of rounding, if the service does not report it. Published models have fewer."""


@dataclass(frozen=True)
class WeightRoutes:
    """The requests of `rllm_serving.tinker_additions`, to a server that can compare tensors."""

    base_url: str
    api_key: str | None
    waiting: Waiting

    async def different_tensors(self, model_id: str, sampler_id: str) -> list[TensorDifference]:
        """Return the sampler's tensors that differ from the trained weights.

        Raises:
            BackendError: the request failed or exceeded a time limit.
        """
        found = await self._post(TENSORS_ROUTE, model_id=model_id, sampler_id=sampler_id)
        return [TensorDifference(name=name, values_of=owner) for name, owner in found["tensors"].items()]

    async def score_suspects(self, model_id: str, probe: Probe) -> dict[KnownFault, Scores]:
        """Return the scores, (n_score,), of the trained weights with each fault that the server can compute.

        Raises:
            BackendError: the request failed or exceeded a time limit.
        """
        found = await self._post(SUSPECTS_ROUTE, model_id=model_id, rows=probe.tokens.tolist())
        return {
            KnownFault[name]: np.array(rows, np.float32)[:, probe.prompt - 1 :].ravel()
            for name, rows in found["suspects"].items()
        }

    async def _post(self, route: str, **content: Any) -> Any:
        def post() -> Any:
            headers = {} if self.api_key is None else {"X-API-Key": self.api_key}
            url = self.base_url.rstrip("/") + API + route
            # The wait for the thread has the time limit.
            response = httpx.post(url, json=content, headers=headers, timeout=None, verify=_certificates())
            return response.raise_for_status().json()

        return await self.waiting.for_thread(post, "Comparing the weights")


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates of httpx. Reading them for each client would take longer than the request."""
    return httpx.create_ssl_context()


class TinkerComparison(WeightComparison):
    """Scores tokens with the model in training and with the sampling client of the latest weights.

    Tensors, and faults other than a missing adapter, are compared only if the server has `WeightRoutes`.
    """

    def __init__(
        self,
        trainer: Callable[[], Trainer],
        engine: TinkerEngine,
        base: Callable[[], Awaitable[Sampler]],
        model: ServedModel,
        routes: WeightRoutes | None,
    ) -> None:
        """Store the parts of a started backend.

        Args:
            trainer: function that returns the model in training.
            engine: the rollout engine.
            base: function that returns a sampler for the base model.
            model: the base model.
            routes: None if the server cannot compare tensors.
        """
        self._trainer = trainer
        self._engine = engine
        self._make_base = base
        self._base: Sampler | None = None
        self._routes = routes
        self.vocabulary = model.vocabulary
        # The request for log-probs of a row also samples one token.
        self.max_context = engine.max_context - 1
        self.layers = model.layers
        self.dtype = model.dtype

    async def of_trainer(self, probe: Probe) -> Scores:
        ones = np.ones(probe.tokens.shape[1] - 1, np.float32)
        data = [Datum(tokens=row[:-1], targets=row[1:], inputs={"weights": ones}) for row in probe.tokens]
        forward = await self._trainer().forward(data)
        return np.concatenate([logprobs[probe.prompt - 1 :] for logprobs in forward.logprobs])

    async def of_samplers(self, probe: Probe) -> Mapping[str, Scores]:
        return {NAME: await _score(self._engine.latest_sampler, probe)}

    async def of_suspects(self, probe: Probe) -> Mapping[KnownFault, Scores]:
        if self._base is None:
            self._base = await self._make_base()
        found = {} if self._routes is None else await self._routes.score_suspects(self._trainer().id, probe)
        return {KnownFault.NO_ADAPTER: await _score(self._base, probe), **found}

    async def different_tensors(self, sampler: str, *, is_suspect: bool) -> Sequence[TensorDifference] | None:
        if self._routes is None:
            return None
        return await self._routes.different_tensors(self._trainer().id, self._engine.latest_sampler.id)


async def _score(sampler: Sampler, probe: Probe) -> Scores:
    of_rows = await asyncio.gather(*(sampler.logprobs(row) for row in probe.tokens))
    return np.concatenate([logprobs[probe.prompt :] for logprobs in of_rows])
